"""Charts of load tests: results over time, latency distributions and sweeps. They need matplotlib."""

# Many matplotlib functions take untyped keywords.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping, Sequence
from typing import Final

from matplotlib import style
from matplotlib.figure import Figure

from headgate.loadtest.comparison import RequestSample
from headgate.loadtest.sweep import SweepLevel
from headgate.simulation.report.chart_elements import (
    COLOURS,
    STYLE,
    axis_legend,
    columns_of_panels,
    format_durations,
    format_percents,
    plot_cdf,
    result_legend,
    rows_of_panels,
    to_svg,
    with_line_styles,
)
from headgate.simulation.report.charts import Chart
from headgate.simulation.report.latency_summary import LatencySummary
from headgate.simulation.report.request_result import RequestResult

_BUCKETS: Final = 120
_SHOWN_NS_MIN: Final = 100_000
"""Shorter latencies are drawn as this one, because the axis is logarithmic. TPOT is 0 if all tokens arrive at once."""
_RESULTS: Final = (RequestResult.GOOD, RequestResult.LATE, RequestResult.FAILED)


def run_charts(runs: Mapping[str, Sequence[RequestSample]], *, length_ns: int) -> list[Chart]:
    """Returns the charts of one run, or of several runs of the same length by name."""
    with style.context(["default", STYLE]):
        return [
            Chart(
                "Requests by result and scheduled time",
                "Requests per second. Late requests completed, but missed a target.",
                to_svg(_results_over_time(runs, max(length_ns, 1))),
            ),
            Chart(
                "Latency distribution",
                "Share of all requests. A curve ends below 100% if some requests did not complete.",
                to_svg(_latencies(runs)),
            ),
        ]


def sweep_chart(levels: Sequence[SweepLevel]) -> Chart:
    with style.context(["default", STYLE]):
        svg = to_svg(_sweep(levels))
    return Chart("Goodput and latency by load", "Left: requests per second. Right: 95th percentiles in seconds.", svg)


def _results_over_time(runs: Mapping[str, Sequence[RequestSample]], length_ns: int) -> Figure:
    figure, axes = rows_of_panels(len(runs), height=1.5)
    bucket_s = length_ns / 1e9 / _BUCKETS
    edges = [number * bucket_s for number in range(_BUCKETS + 1)]
    for axis, (name, samples) in zip(axes, runs.items(), strict=True):
        counts = {result: [0] * _BUCKETS for result in _RESULTS}
        for sample in samples:
            counts[_result(sample)][min(_BUCKETS - 1, sample.scheduled_ns * _BUCKETS // length_ns)] += 1
        below = [0.0] * _BUCKETS
        for result, column in counts.items():
            above = [under + count / bucket_s for under, count in zip(below, column, strict=True)]
            steps = [*below, below[-1]], [*above, above[-1]]
            axis.fill_between(edges, *steps, step="post", color=COLOURS[result], linewidth=0)
            below = above
        axis.set_title(name if len(runs) > 1 else "")
        axis.set_ylabel("requests/s")
        axis.set_xlim(0, edges[-1])
        axis.set_ylim(bottom=0)
    axes[-1].set_xlabel("time in s")
    result_legend(figure, _RESULTS)
    return figure


def _result(sample: RequestSample) -> RequestResult:
    if not sample.completed:
        return RequestResult.FAILED
    return RequestResult.GOOD if sample.good else RequestResult.LATE


def _latencies(runs: Mapping[str, Sequence[RequestSample]]) -> Figure:
    figure, axes = columns_of_panels(3, height=2.2)
    for axis, kind in zip(axes, ("ttft_ns", "tpot_ns", "e2e_ns"), strict=True):
        for name, colour, dashes in with_line_styles(runs):
            samples = runs[name]
            measured = (getattr(each, kind) for each in samples)
            values = sorted(max(value, _SHOWN_NS_MIN) for value in measured if value is not None)
            if values:
                plot_cdf(axis, values, len(samples), label=name, colour=colour, dashes=dashes)
                format_durations(axis)
        axis.set_title(kind.removesuffix("_ns").upper())
        format_percents(axis)
    if len(runs) > 1:
        axis_legend(figure, axes[-1])
    return figure


def _sweep(levels: Sequence[SweepLevel]) -> Figure:
    figure, [left, right] = columns_of_panels(2, height=2.2)
    factors = [level.factor for level in levels]
    totals = [level.result.total for level in levels]
    rates = {
        "offered": [level.result.per_second(total.offered) for level, total in zip(levels, totals, strict=True)],
        "good": [level.result.per_second(total.good) for level, total in zip(levels, totals, strict=True)],
    }
    latencies = {
        "TTFT p95": [_p95_s(total.ttft_ns) for total in totals],
        "E2E p95": [_p95_s(total.e2e_ns) for total in totals],
    }
    for axis, lines in ((left, rates), (right, latencies)):
        for name, colour, dashes in with_line_styles(lines):
            axis.plot(factors, lines[name], color=colour, linestyle=dashes, marker="o", markersize=3, label=name)
        axis.set_xlabel("load")
        axis.set_ylim(bottom=0)
        axis.legend(loc="best")
    return figure


def _p95_s(values_ns: Sequence[int]) -> float:
    """Returns the 95th percentile, or NaN, which leaves a gap in the line."""
    summary = LatencySummary.of(values_ns)
    return float("nan") if summary is None else summary.percentiles[95] / 1e9
