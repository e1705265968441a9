"""What is an experiment, and how is its outcome told?

An experiment is run with a seed, quick or whole, and gives figures: nested dictionaries of numbers, the same for the
same seed. Of several seeds the means are told, as a table and as one JSON object, and held against bars.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from headgate.core.scheduler import Scheduler
from headgate.ports.observer import Observer
from headgate.simulation.report.report import Report
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.scenario import Decider, Scenario

Figures = Mapping[str, Any]
RESULTS = Path(__file__).parents[2] / "docs" / "project" / "results"
WHOLE_SEEDS = (1, 2, 3, 4, 5)


class Run(Protocol):
    def __call__(self, seed: int, *, quick: bool) -> Figures:
        """One seed of it, in a quick version if that will do."""
        ...


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure must be at least, or at most."""

    what: str
    figure: float
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool:
        return (self.least is None or self.figure >= self.least) and (self.most is None or self.figure <= self.most)

    def __str__(self) -> str:
        bound = f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"
        return f"{'met' if self.met else 'MISSED'}: {self.what} is {self.figure:.4g}, {bound} is asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    name: str
    """As the command calls it, and the page of its results."""
    title: str
    about: str
    """What is run and measured, for the page of its results."""
    run: Run
    table: Callable[[Figures], str]
    """Of the means over the seeds, in Markdown."""
    bars: Callable[[Figures], Sequence[Bar]]
    charts: Callable[[Figures, Path], Sequence[str]] | None = None
    """Draws into the folder, and answers with the names of the files."""
    seeds: tuple[int, ...] = WHOLE_SEEDS
    """Of the whole; a quick run takes the first."""


class DataMissing(Exception):
    """The recorded traces are not at hand."""


def data() -> Path:
    folder = os.environ.get("HEADGATE_DATA")
    if folder is None:
        raise DataMissing(
            "HEADGATE_DATA must name the directory that contains traces/ (their sources: docs/reference/scenarios.md)"
        )
    return Path(folder)


def played(scenario: Scenario, *observers: Observer, samples: int = 600) -> Report:
    report = Report(scenario)
    VirtualHost(scenario, report, observers=observers, samples=samples).run()
    return report


def ours() -> Decider:
    return Scheduler()


def means(many: Sequence[Any]) -> Any:
    """Of figures of the same shape, number by number. What is not a number is taken from the first that has it."""
    known = [each for each in many if each is not None]
    if not known:
        return None
    first = known[0]
    if isinstance(first, Mapping):
        keys = dict.fromkeys(key for each in known for key in each)
        return {key: means([each.get(key) for each in known]) for key in keys}
    if isinstance(first, int | float) and not isinstance(first, bool):
        return first if len(known) == 1 else round(fmean(known), 6)
    return first


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """In Markdown, its columns aligned for those who read it as it is."""
    cells = [[str(each) for each in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}".replace("%", " %")


def seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"
