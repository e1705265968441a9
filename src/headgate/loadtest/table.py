"""Text report of a load test."""

from collections.abc import Iterator
from typing import Final

from headgate.loadtest.cost import cost_line
from headgate.loadtest.generator import LATE_P99_NS_MAX, RunCounts
from headgate.loadtest.report import LoadTestResult
from headgate.loadtest.request import LoadTestOutcome
from headgate.loadtest.tally import LoadTestTally
from headgate.simulation.report.latency_summary import LatencySummary
from headgate.simulation.report.targets import LatencyTargets
from headgate.simulation.report.text_table import (
    Table,
    format_counts,
    format_duration,
    format_rate,
    latency_table,
    render_table,
)

_COUNTS_DROPPABLE: Final = ("connection_failed", "unfinished", "interrupted", "retries", "tokens/s")


def render(result: LoadTestResult, *, width: int) -> str:
    parts = [
        [summary_line(result)],
        render_table(count_table(result), width, droppable=_COUNTS_DROPPABLE),
        render_table(latency_rows(result), width, droppable=("p90", "p95")),
        list(reason_lines(result.total)),
        [cost_line(result.cost)] if result.cost is not None else [],
        list(generator_lines(result.counts)),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _named_tallies(result: LoadTestResult) -> list[tuple[str, LoadTestTally]]:
    """One row per class and per tenant if there are several, and one row for all requests."""
    classes, tenants = result.classes, result.tenants
    rows = [(f"class {name}", tally) for name, tally in classes.items()] if len(classes) > 1 else []
    if len(tenants) > 1:
        rows += [(f"tenant {name}", tally) for name, tally in tenants.items()]
    return [*rows, ("all", result.total)]


def summary_line(result: LoadTestResult) -> str:
    total, seconds = result.total, result.schedule_ns / 1e9
    early = ", stopped early" if result.counts.stopped_early else ""
    offered = f"{total.offered} requests in {seconds:.4g} s ({format_rate(result.per_second(total.offered))}/s){early}"
    named = [("", result.targets), *((f"{name} ", each) for name, each in sorted(result.class_targets.items()))]
    wanted = "; ".join(f"{name}{text}" for name, targets in named if (text := _targets(targets)))
    good = f"; good: {wanted}" if wanted else ""
    return f"{result.model} at {result.url}\n{offered}{good}"


def _targets(targets: LatencyTargets) -> str:
    named = (("TTFT", targets.ttft_ns), ("TPOT", targets.tpot_ns), ("E2E", targets.e2e_ns))
    return ", ".join(f"{name} ≤ {format_duration(value)}" for name, value in named if value is not None)


def count_table(result: LoadTestResult) -> Table:
    # Results that no request had do not get a column, except for the two that readers expect.
    total = result.total
    shown = [
        each
        for each in LoadTestOutcome
        if total.outcomes[each] or each in (LoadTestOutcome.COMPLETED, LoadTestOutcome.HTTP_ERROR)
    ]
    table = [["requests", "offered", *shown, "goodput/s", "tokens/s", "retries"]]
    for name, tally in _named_tallies(result):
        table.append(
            [
                name,
                str(tally.offered),
                *(str(tally.outcomes[ending]) for ending in shown),
                format_rate(result.per_second(tally.good)),
                format_rate(result.tokens_per_second(tally.output_tokens)),
                str(tally.retries),
            ]
        )
    return table


def latency_rows(result: LoadTestResult) -> Table:
    rows = _named_tallies(result)
    kinds = [(name, (("TTFT", tally.ttft_ns), ("TPOT", tally.tpot_ns), ("E2E", tally.e2e_ns))) for name, tally in rows]
    return latency_table([(name, [(kind, LatencySummary.of(values)) for kind, values in each]) for name, each in kinds])


def reason_lines(total: LoadTestTally) -> Iterator[str]:
    for ending, codes in sorted(total.codes.items()):
        yield f"{ending}: {format_counts(codes)}"
    if total.retried_for:
        yield f"retried after: {format_counts(total.retried_for)}"
    if total.without_usage:
        yield f"{total.without_usage} responses without usage; their tokens are counted from stream events"


def generator_lines(course: RunCounts) -> Iterator[str]:
    spread = course.lateness
    if spread is None:
        return
    cpu = course.cpu_s / (course.elapsed_ns / 1e9) if course.elapsed_ns else 0.0
    p50, p99, longest = map(format_duration, (spread.percentiles[50], spread.percentiles[99], spread.max_ns))
    late = f"start delay p50 {p50}, p99 {p99}, max {longest}"
    most = course.connections.open_peak if course.connections else 0
    yield f"generator: {late}; {cpu:.0%} of a core; up to {most} open connections"
    yield from warnings(course)


def warnings(course: RunCounts) -> Iterator[str]:
    """Reasons why the results are unreliable."""
    if course.connection_waits and course.connections is not None:
        yield (
            f"WARNING: {course.connection_waits} requests waited for one of the {course.connections.connections_max}"
            " connections; raise --connections-max, lower --rate or set --client-timeout"
        )
    spread = course.lateness
    if spread is not None and spread.percentiles[99] > LATE_P99_NS_MAX:
        yield (
            "WARNING: the generator fell behind: 1 request in 100 started at least"
            f" {format_duration(spread.percentiles[99])} late."
            " The latencies include this delay. Lower --rate, or give the generator a dedicated core"
        )
