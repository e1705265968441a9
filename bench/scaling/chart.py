"""Charts of the GPU-hours that each autoscaler needs."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bench.scaling.compare import KINDS, OURS, USUAL_COLD_START_S, Comparison
from bench.scaling.oracle import SLO

AIM = 1.15
_COLOURS = dict(zip(KINDS, ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"), strict=True))
_SHOWN_MIN, _HOURS_MAX = 0.94, 2.5
_NOT_REACHED = 2.6
"""Vertical position of autoscalers that do not reach the attainment level with any target."""


def draw_curves(path: Path, comparisons: Sequence[Comparison]) -> None:
    """Draw GPU-hours relative to the oracle against attainment, one panel per trace."""
    with mpl.rc_context({"svg.hashsalt": path.name, "font.size": 9}):
        figure = Figure(figsize=(3.4 * len(comparisons) + 1.6, 3.6), layout="constrained")
        panels = figure.subplots(1, len(comparisons), sharey=True, squeeze=False)[0]
        for axes, comparison in zip(panels, comparisons, strict=True):
            _panel(axes, comparison)
        panels[0].set_ylabel("attainment")
        _legend(figure, panels[0])
        figure.supxlabel("GPU-hours over the oracle's", fontsize=9)
        figure.savefig(path, metadata={"Date": None})


def _panel(axes: Axes, comparison: Comparison) -> None:
    for name, points in comparison.curves.items():
        hours = [comparison.over_oracle(each.gpu_hours) for each in points]
        bold = name == OURS
        axes.plot(
            hours,
            [each.attainment for each in points],
            marker="o",
            markersize=4 if bold else 3,
            linewidth=2.2 if bold else 1.0,
            color=_COLOURS[name],
            label=name,
            zorder=3 if bold else 2,
        )
    axes.plot([1.0], [comparison.oracle.attainment], marker="*", markersize=11, color="black", label="oracle", ls="")
    axes.axhline(SLO, color="grey", linewidth=0.8, linestyle=":")
    axes.axvline(AIM, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xlim(0.9, _HOURS_MAX)
    axes.set_ylim(_SHOWN_MIN, 1.002)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f} %"))
    axes.set_title(f"{comparison.trace}, cold start {comparison.cold_start_s} s", fontsize=9)
    axes.grid(alpha=0.3)


def draw_cold_starts(path: Path, comparisons: Sequence[Comparison]) -> None:
    """Draw the GPU-hours of each autoscaler at Headgate's attainment against the cold start."""
    traces = list(dict.fromkeys(each.trace for each in comparisons))
    with mpl.rc_context({"svg.hashsalt": path.name, "font.size": 9}):
        figure = Figure(figsize=(3.4 * len(traces) + 1.6, 3.4), layout="constrained")
        panels = figure.subplots(1, len(traces), sharey=True, squeeze=False)[0]
        for axes, trace in zip(panels, traces, strict=True):
            _by_cold_start(axes, [each for each in comparisons if each.trace == trace])
            axes.set_title(trace, fontsize=9)
        panels[0].set_ylabel("GPU-hours over the oracle's\nat Headgate's attainment")
        _legend(figure, panels[0])
        figure.supxlabel("cold start, s", fontsize=9)
        figure.savefig(path, metadata={"Date": None})


def _by_cold_start(axes: Axes, comparisons: Sequence[Comparison]) -> None:
    places = range(len(comparisons))
    for name in KINDS:
        hours = [each.ours.gpu_hours if name == OURS else each.hours_at_our_attainment[name] for each in comparisons]
        over = [
            _NOT_REACHED if of is None else min(_NOT_REACHED, each.over_oracle(of))
            for each, of in zip(comparisons, hours, strict=True)
        ]
        bold = name == OURS
        style = {"color": _COLOURS[name], "label": name, "linewidth": 2.2 if bold else 1.0}
        axes.plot(places, over, marker="o", markersize=3, **style)
    axes.axhline(AIM, color="grey", linewidth=0.8, linestyle=":")
    axes.axhline(_NOT_REACHED, color="grey", linewidth=0.6)
    axes.text(0, _NOT_REACHED + 0.02, "more, or never reached", fontsize=7, color="#555555")
    axes.set_xticks(places, [str(each.cold_start_s) for each in comparisons])
    axes.set_ylim(0.95, _NOT_REACHED + 0.12)
    axes.grid(alpha=0.3)


def _legend(figure: Figure, axes: Axes) -> None:
    """Place the legend beside the panels, where it does not cover any lines."""
    figure.legend(*axes.get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside right upper")


def usual(comparisons: Sequence[Comparison]) -> list[Comparison]:
    return [each for each in comparisons if each.cold_start_s == USUAL_COLD_START_S]
