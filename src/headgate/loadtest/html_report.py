"""HTML reports of load tests: one self-contained page without scripts."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from headgate.loadtest.comparison import MeasureComparison, RequestSample
from headgate.loadtest.comparison_report import comparison_table
from headgate.loadtest.cost import cost_line
from headgate.loadtest.report import LoadTestResult
from headgate.loadtest.request import LoadTestOutcome
from headgate.loadtest.sweep import SweepLevel, highest_line, sweep_table
from headgate.loadtest.table import count_table, generator_lines, latency_rows, reason_lines, summary_line
from headgate.simulation.report.html_page import (
    chart_section,
    figure_list,
    html_page,
    matplotlib_required,
    table_section,
)
from headgate.simulation.report.latency_summary import LatencySummary
from headgate.simulation.report.text_table import format_amount, format_duration, format_percent, format_rate

if TYPE_CHECKING:
    from headgate.simulation.report.charts import Chart


def runs_page(
    results: Sequence[LoadTestResult],
    samples: Sequence[Sequence[RequestSample]],
    comparison: Sequence[MeasureComparison] = (),
) -> str:
    """Page of one run, or of two runs with their comparison."""
    urls = [result.url for result in results]
    names = urls if len(urls) == 1 else [f"{role}: {url}" for role, url in zip(("base", "other"), urls, strict=True)]
    named = dict(zip(names, samples, strict=True))
    drawn = _run_charts(named, length_ns=max(result.schedule_ns for result in results))
    return html_page("Load test", _runs_body(dict(zip(names, results, strict=True)), drawn, comparison))


def sweep_page(levels: Sequence[SweepLevel], share: float) -> str:
    with matplotlib_required():
        from headgate.loadtest.charts import sweep_chart  # noqa: PLC0415 (needs matplotlib)
    return html_page("Load test", _sweep_body(levels, share, sweep_chart(levels)))


def _run_charts(runs: Mapping[str, Sequence[RequestSample]], *, length_ns: int) -> "list[Chart]":
    with matplotlib_required():
        from headgate.loadtest.charts import run_charts  # noqa: PLC0415 (needs matplotlib)
    return run_charts(runs, length_ns=length_ns)


def _runs_body(
    results: Mapping[str, LoadTestResult], drawn: "Sequence[Chart]", comparison: Sequence[MeasureComparison]
) -> Iterator[str]:
    yield "<header><h1>Load test</h1>"
    for result in results.values():
        yield f"<p>{escape(summary_line(result))}</p>"
        yield from figure_list(_figures(result))
    yield "</header>"
    if comparison:
        yield from table_section("Comparison", comparison_table(comparison))
    for chart in drawn:
        yield from chart_section(chart)
    for name, result in results.items():
        suffix = f", {name}" if len(results) > 1 else ""
        yield from table_section(f"Requests{suffix}", count_table(result), reason_lines(result.total))
        if latencies := latency_rows(result):
            yield from table_section(f"Latencies{suffix}", latencies, generator_lines(result.counts))


def _sweep_body(levels: Sequence[SweepLevel], share: float, drawn: "Chart") -> Iterator[str]:
    first = levels[0].result
    yield f"<header><h1>Load test</h1><p>{escape(f'{first.model} at {first.url}')}</p></header>"
    yield from chart_section(drawn)
    yield from table_section("Levels of load", sweep_table(levels, share), [highest_line(levels, share)])


def _figures(result: LoadTestResult) -> Iterator[tuple[str, str]]:
    total = result.total
    yield format_amount(total.offered), f"requests, {format_rate(result.per_second(total.offered))} per second"
    completed = total.outcomes[LoadTestOutcome.COMPLETED]
    yield format_percent(completed / total.offered if total.offered else None), "of requests completed"
    yield format_rate(result.per_second(total.good)), "good requests per second"
    ttft = LatencySummary.of(total.ttft_ns)
    if ttft is not None:
        yield format_duration(ttft.percentiles[95]), "p95 TTFT"
    if (cost := result.cost) is not None:
        yield f"${cost.usd:.4g}", cost_line(cost).partition(": ")[2]
