"""Elements shared by all charts: colours, axes, bars and SVG output.

Charts contain no dates, random values or machine-specific settings, so that the same values produce the same bytes.
"""

# Many matplotlib functions take untyped keywords.
# pyright: reportUnknownMemberType=false

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from headgate.simulation.report.request_result import RequestResult
from headgate.simulation.report.text_report import display_name
from headgate.simulation.report.text_table import format_duration, format_percent

STYLE: Final = {
    "svg.hashsalt": "headgate",
    "svg.fonttype": "none",
    "text.parse_math": False,  # Tenant names can contain a dollar sign.
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
"""Width of all charts. Corresponds to 720 SVG units, which a 960-pixel page enlarges by a third."""

# Okabe-Ito palette, which is distinguishable with any kind of colour blindness.
BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#F0E442"
ORANGE, RED, PURPLE, BLACK = "#E69F00", "#D55E00", "#CC79A7", "#000000"
GREY: Final = "#888888"
LINE_COLOURS: Final = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, BLACK, YELLOW)
STACK_ORDER: Final = (
    RequestResult.GOOD,
    RequestResult.LATE,
    RequestResult.CANCELLED,
    RequestResult.FAILED,
    RequestResult.DROPPED,
    RequestResult.REJECTED,
)
"""Stacking order, from bottom to top or from left to right."""
COLOURS: Final[dict[str, str]] = {
    RequestResult.GOOD: GREEN,
    RequestResult.LATE: ORANGE,
    RequestResult.CANCELLED: PURPLE,
    RequestResult.FAILED: RED,
    RequestResult.DROPPED: SKY,
    RequestResult.REJECTED: BLUE,
    "unattributed": "#999999",
    "idle": "#e6e6e6",
}
_WHITE_LABELS: Final = (RequestResult.GOOD, RequestResult.FAILED, RequestResult.REJECTED)
_LABELLED_SHARE_MIN: Final = 0.045
_LEGEND_SHARE_MIN: Final = 0.0005
_CURVE_POINTS_MAX: Final = 300

_Name = TypeVar("_Name", bound=str)


def with_line_styles(names: Iterable[_Name]) -> Iterator[tuple[_Name, str, str]]:
    """Yields a colour and line style for each name. After eight names, the colours repeat with different dashes."""
    dashes = ("-", "-.", ":")
    for number, name in enumerate(names):
        yield name, LINE_COLOURS[number % len(LINE_COLOURS)], dashes[number // len(LINE_COLOURS) % len(dashes)]


# ---------------------------------------------------------------------------------------------------- layout
def rows_of_panels(count: int, *, height: float, above: float = 0.52) -> tuple[Figure, list[Axes]]:
    """Creates stacked panels with a shared time axis. `above` is the space for the title and legend, in inches."""
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
    """Creates panels side by side."""
    figure = _figure(height, left=0.072, above=above, below=below)
    figure.subplots_adjust(wspace=0.05 + 0.09 * count)
    return figure, [figure.add_subplot(1, count, number + 1) for number in range(count)]


def _figure(height: float, *, left: float, above: float, below: float = 0.46) -> Figure:
    """Creates a figure with fixed margins. Measuring titles, legends and labels would double the drawing time."""
    inches = height + above + below
    figure = Figure(figsize=(WIDTH_INCHES, inches))
    figure.subplots_adjust(left=left, right=0.98, top=1 - above / inches, bottom=below / inches)
    return figure


def format_counts(axis: Axes) -> None:
    axis.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axis.set_ylim(0, max(axis.get_ylim()[1], 1))


def format_percents(axis: Axes, *, x: bool = False, y: bool = True) -> None:
    for wanted, each in ((x, axis.xaxis), (y, axis.yaxis)):
        if wanted:
            each.set_major_formatter(PercentFormatter(1.0))
    if y:
        axis.set_ylim(0, 1.02)
    if x:
        axis.set_xlim(0, 1)


def format_durations(axis: Axes) -> None:
    """Formats the x axis as durations on a logarithmic scale."""
    axis.set_xscale("log")
    least, greatest = axis.get_xlim()
    finer = greatest < 50 * least
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if finer else (1.0,), numticks=10))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(_duration))


def _duration(value_s: float, _: object) -> str:
    return format_duration(round(value_s * 1e9))


# ---------------------------------------------------------------------------------------------------- shapes
def plot_cdf(axis: Axes, ordered: Sequence[int], whole: int, *, label: str, colour: str, dashes: str) -> None:
    """Draws the cumulative share of `whole` by duration."""
    count = len(ordered)
    places = [max(1, count * number // _CURVE_POINTS_MAX) for number in range(_CURVE_POINTS_MAX + 1)]
    ranks = list(dict.fromkeys(places)) if count else []
    durations_s = [max(ordered[rank - 1], 1) / 1e9 for rank in ranks]
    shares = [rank / whole for rank in ranks]
    axis.plot(durations_s, shares, color=colour, linestyle=dashes, label=label, drawstyle="steps-post")


def stacked_bars(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], *, unit: str) -> Figure:
    """Draws one bar per row, divided into named parts."""
    left = 0.03 + 0.0076 * max(len(label) for label, _ in rows)
    figure = _figure(0.34 * len(rows), left=left, above=0.32)
    axis = figure.add_subplot()
    for place, (_, parts) in enumerate(rows):
        _bar(axis, place, parts)
    axis.set_yticks(range(len(rows)), [label for label, _ in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    format_percents(axis, x=True, y=False)
    axis.set_xlabel(unit)
    axis.grid(visible=False)
    present = dict.fromkeys(name for _, parts in rows for name, width in parts if width >= _LEGEND_SHARE_MIN)
    result_legend(figure, [name for name in COLOURS if name in present])
    return figure


def _bar(axis: Axes, place: int, parts: Sequence[tuple[str, float]]) -> None:
    start = 0.0
    for name, width in parts:
        if width > 0:
            axis.barh(place, width, left=start, color=COLOURS[name], height=0.74)
        if width >= _LABELLED_SHARE_MIN:
            colour = "white" if name in _WHITE_LABELS else BLACK
            axis.text(start + width / 2, place, format_percent(width), ha="center", va="center", color=colour)
        start += width


def result_legend(figure: Figure, names: Iterable[str]) -> None:
    """Adds a legend for request results and other uses of engine time."""
    handles = [Patch(color=COLOURS[name], label=display_name(name)) for name in names]
    figure.legend(handles=handles, loc="upper right", bbox_to_anchor=(0.99, 1.0), borderaxespad=0.2, ncols=len(COLOURS))


def axis_legend(figure: Figure, axis: Axes) -> None:
    """Adds one legend for several similar axes."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper right", bbox_to_anchor=(0.99, 1.0), borderaxespad=0.2, ncols=8)


# ---------------------------------------------------------------------------------------------------- SVG
def to_svg(figure: Figure) -> str:
    written = io.BytesIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(written, format="svg", metadata=nothing)
    text = written.getvalue().decode()
    text = text[text.index("<svg") :]
    # Remove the group IDs, because every chart has the same ones and they must be unique within a page.
    return re.sub(r'<g id="[^"]*"', "<g", text)
