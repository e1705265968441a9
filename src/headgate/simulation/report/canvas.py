"""What do all charts have in common? Colours, axes, bars, and how they become SVG.

No date, no chance and no setting of the machine's goes into a chart, so the same values give the same bytes.
"""

# Half of matplotlib's functions take keywords without a type.
# pyright: reportUnknownMemberType=false

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from headgate.simulation.report.fate import Fate
from headgate.simulation.report.layout import duration, percent
from headgate.simulation.report.table import named

STYLE: Final = {
    "svg.hashsalt": "headgate",
    "svg.fonttype": "none",
    "text.parse_math": False,  # A tenant may have a dollar in its name.
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.4,
    "lines.linewidth": 1.2,
}
WIDTH_INCHES: Final = 10.0
"""Drawn as 720 units; a page of 960 pixels makes its letters a third larger."""

# The colours of Okabe and Ito, which people with each kind of colour blindness can tell apart.
BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#F0E442"
ORANGE, RED, PURPLE, BLACK = "#E69F00", "#D55E00", "#CC79A7", "#000000"
GREY: Final = "#888888"
LINES: Final = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, BLACK, YELLOW)
STACKED: Final = (Fate.GOOD, Fate.LATE, Fate.LEFT, Fate.FAILED, Fate.GIVEN_UP, Fate.REFUSED)
"""From the bottom to the top, or from the left to the right."""
COLOURS: Final[dict[str, str]] = {
    Fate.GOOD: GREEN,
    Fate.LATE: ORANGE,
    Fate.LEFT: PURPLE,
    Fate.FAILED: RED,
    Fate.GIVEN_UP: SKY,
    Fate.REFUSED: BLUE,
    "unassigned": "#999999",
    "idle": "#e6e6e6",
}
_WITH_WHITE_LETTERS: Final = (Fate.GOOD, Fate.FAILED, Fate.REFUSED)
_LABELLED_SHARE_MIN: Final = 0.045
_TOLD_SHARE_MIN: Final = 0.0005
_CURVE_POINTS_MAX: Final = 300

_Name = TypeVar("_Name", bound=str)


def styled(names: Iterable[_Name]) -> Iterator[tuple[_Name, str, str]]:
    """A colour for each; from the ninth on the colours come again with other dashes."""
    dashes = ("-", "-.", ":")
    for number, name in enumerate(names):
        yield name, LINES[number % len(LINES)], dashes[number // len(LINES) % len(dashes)]


# ---------------------------------------------------------------------------------------------------- places
def rows_of_panels(count: int, *, height: float, above: float = 0.52) -> tuple[Figure, list[Axes]]:
    """One above the other, over the same time. What stands above them, in inches, is added to their height."""
    figure = _figure(height * count, left=0.062, above=above)
    figure.subplots_adjust(hspace=0.32)
    axes: list[Axes] = []
    for number in range(count):
        axes.append(figure.add_subplot(count, 1, number + 1, sharex=axes[0] if axes else None))
        if number < count - 1:
            axes[-1].tick_params(labelbottom=False)
    return figure, axes


def columns_of_panels(
    count: int, *, height: float, above: float = 0.52, below: float = 0.46
) -> tuple[Figure, list[Axes]]:
    """Side by side."""
    figure = _figure(height, left=0.072, above=above, below=below)
    figure.subplots_adjust(wspace=0.05 + 0.09 * count)
    return figure, [figure.add_subplot(1, count, number + 1) for number in range(count)]


def _figure(height: float, *, left: float, above: float, below: float = 0.46) -> Figure:
    """Room for titles, a legend and labels is given beforehand: to measure them would take twice as long."""
    inches = height + above + below
    figure = Figure(figsize=(WIDTH_INCHES, inches))
    figure.subplots_adjust(left=left, right=0.98, top=1 - above / inches, bottom=below / inches)
    return figure


def counted(axis: Axes) -> None:
    axis.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axis.set_ylim(0, max(axis.get_ylim()[1], 1))


def in_percent(axis: Axes, *, x: bool = False, y: bool = True) -> None:
    for wanted, each in ((x, axis.xaxis), (y, axis.yaxis)):
        if wanted:
            each.set_major_formatter(PercentFormatter(1.0))
    if y:
        axis.set_ylim(0, 1.02)
    if x:
        axis.set_xlim(0, 1)


def in_durations(axis: Axes) -> None:
    """Seconds on a scale of powers."""
    axis.set_xscale("log")
    least, greatest = axis.get_xlim()
    finer = greatest < 50 * least
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if finer else (1.0,), numticks=10))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(_duration))


def _duration(value_s: float, _: object) -> str:
    return duration(round(value_s * 1e9))


# ---------------------------------------------------------------------------------------------------- shapes
def curve(axis: Axes, ordered: Sequence[int], whole: int, *, label: str, colour: str, dashes: str) -> None:
    """What share of the whole took no longer than so long."""
    count = len(ordered)
    places = [max(1, count * number // _CURVE_POINTS_MAX) for number in range(_CURVE_POINTS_MAX + 1)]
    ranks = list(dict.fromkeys(places)) if count else []
    durations_s = [max(ordered[rank - 1], 1) / 1e9 for rank in ranks]
    shares = [rank / whole for rank in ranks]
    axis.plot(durations_s, shares, color=colour, linestyle=dashes, label=label, drawstyle="steps-post")


def bars_of_shares(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], *, unit: str) -> Figure:
    """A bar for each row, divided into named parts."""
    left = 0.03 + 0.0076 * max(len(label) for label, _ in rows)
    figure = _figure(0.34 * len(rows), left=left, above=0.32)
    axis = figure.add_subplot()
    for place, (_, parts) in enumerate(rows):
        _bar(axis, place, parts)
    axis.set_yticks(range(len(rows)), [label for label, _ in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    in_percent(axis, x=True, y=False)
    axis.set_xlabel(unit)
    axis.grid(visible=False)
    present = dict.fromkeys(name for _, parts in rows for name, width in parts if width >= _TOLD_SHARE_MIN)
    legend(figure, [name for name in COLOURS if name in present])
    return figure


def _bar(axis: Axes, place: int, parts: Sequence[tuple[str, float]]) -> None:
    start = 0.0
    for name, width in parts:
        if width > 0:
            axis.barh(place, width, left=start, color=COLOURS[name], height=0.74)
        if width >= _LABELLED_SHARE_MIN:
            colour = "white" if name in _WITH_WHITE_LETTERS else BLACK
            axis.text(start + width / 2, place, percent(width), ha="center", va="center", color=colour)
        start += width


def legend(figure: Figure, names: Iterable[str]) -> None:
    """Of fates and of what else engines do."""
    handles = [Patch(color=COLOURS[name], label=named(name)) for name in names]
    figure.legend(handles=handles, loc="upper right", bbox_to_anchor=(0.99, 1.0), borderaxespad=0.2, ncols=len(COLOURS))


def legend_of(figure: Figure, axis: Axes) -> None:
    """Of what is drawn on one of several axes that look alike."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper right", bbox_to_anchor=(0.99, 1.0), borderaxespad=0.2, ncols=8)


# ---------------------------------------------------------------------------------------------------- SVG
def svg(figure: Figure) -> str:
    written = io.BytesIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(written, format="svg", metadata=nothing)
    text = written.getvalue().decode()
    text = text[text.index("<svg") :]
    # Groups are called alike in each chart, and in a page a name may be there only once. Nothing refers to them.
    return re.sub(r'<g id="[^"]*"', "<g", text)
