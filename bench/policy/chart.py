"""Small line chart, written as reproducible SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    x: Sequence[float]
    y: Sequence[float]


def draw(path: Path, lines: Sequence[Line], *, title: str, x: str, y: str) -> None:
    """Draw the lines and emphasize the first one."""
    with mpl.rc_context({"svg.hashsalt": path.name, "font.size": 9}):
        figure = Figure(figsize=(5.5, 3.2), layout="constrained")
        axes = figure.subplots()
        for number, line in enumerate(lines):
            axes.plot(line.x, line.y, marker="o", markersize=3, linewidth=1.0 if number else 2.2, label=line.name)
        axes.set(title=title, xlabel=x, ylabel=y)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
        figure.savefig(path, metadata={"Date": None})
