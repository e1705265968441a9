"""What came of a run, for people?"""

from collections.abc import Iterator, Sequence

from headgate.loadtest.endings import Ending
from headgate.loadtest.generator import LATE_P99_NS_MAX, Course
from headgate.loadtest.report import Result
from headgate.loadtest.tally import Tally
from headgate.simulation.report.layout import Table, duration, latency_table, lay_out, listed, rate
from headgate.simulation.report.spread import Spread


def render(result: Result, *, width: int) -> str:
    rows = _named_tallies(result)
    parts = [
        [_summary(result)],
        lay_out(_counts(rows, result), width, spare=("unreached", "unfinished", "broken", "retries", "tokens/s")),
        lay_out(_latencies(rows), width, spare=("p90", "p95")),
        list(_reasons(result.total)),
        list(_generator(result.course)),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _named_tallies(result: Result) -> list[tuple[str, Tally]]:
    """A row for each class and tenant where there are several, and one for all."""
    classes, tenants = result.classes, result.tenants
    rows = [(f"class {name}", tally) for name, tally in classes.items()] if len(classes) > 1 else []
    if len(tenants) > 1:
        rows += [(f"tenant {name}", tally) for name, tally in tenants.items()]
    return [*rows, ("all", result.total)]


def _summary(result: Result) -> str:
    total, seconds = result.total, result.schedule_ns / 1e9
    early = ", stopped early" if result.course.stopped_early else ""
    offered = f"{total.offered} requests in {seconds:.4g} s ({rate(result.per_second(total.offered))}/s){early}"
    targets = result.targets
    named = (("TTFT", targets.ttft_ns), ("TPOT", targets.tpot_ns), ("E2E", targets.e2e_ns))
    wanted = ", ".join(f"{name} ≤ {duration(value)}" for name, value in named if value is not None)
    good = f"; good: {wanted}" if wanted else ""
    return f"{result.model} at {result.url}\n{offered}{good}"


def _counts(rows: Sequence[tuple[str, Tally]], result: Result) -> Table:
    # An ending that never came needs a column only if it is one that everybody looks for.
    total = result.total
    shown = [each for each in Ending if total.endings[each] or each in (Ending.COMPLETED, Ending.REFUSED)]
    table = [["requests", "offered", *shown, "goodput/s", "tokens/s", "retries"]]
    for name, tally in rows:
        table.append(
            [
                name,
                str(tally.offered),
                *(str(tally.endings[ending]) for ending in shown),
                rate(result.per_second(tally.good)),
                rate(result.tokens_per_second(tally.output_tokens)),
                str(tally.retries),
            ]
        )
    return table


def _latencies(rows: Sequence[tuple[str, Tally]]) -> Table:
    kinds = [(name, (("TTFT", tally.ttft_ns), ("TPOT", tally.tpot_ns), ("E2E", tally.e2e_ns))) for name, tally in rows]
    return latency_table([(name, [(kind, Spread.of(values)) for kind, values in each]) for name, each in kinds])


def _reasons(total: Tally) -> Iterator[str]:
    for ending, codes in sorted(total.codes.items()):
        yield f"{ending}: {listed(codes)}"
    if total.retried_for:
        yield f"retried after: {listed(total.retried_for)}"
    if total.tokens_untold:
        yield f"{total.tokens_untold} answers came without usage; their tokens are counted by events"


def _generator(course: Course) -> Iterator[str]:
    spread = course.lateness
    if spread is None:
        return
    cpu = course.cpu_s / (course.elapsed_ns / 1e9) if course.elapsed_ns else 0.0
    late = f"late by p50 {duration(spread.at[50])}, p99 {duration(spread.at[99])}, max {duration(spread.most)}"
    most = course.connections.open_most if course.connections else 0
    yield f"generator: {late}; {cpu:.0%} of a core; {most} connections at most"
    yield from warnings(course)


def warnings(course: Course) -> Iterator[str]:
    """Why the figures are not to be trusted."""
    if course.connection_waits and course.connections is not None:
        yield (
            f"WARNING: {course.connection_waits} requests waited for one of the {course.connections.most} connections; "
            "raise --connections, lower --rate or set --patience"
        )
    spread = course.lateness
    if spread is not None and spread.at[99] > LATE_P99_NS_MAX:
        yield (
            f"WARNING: the generator fell behind: 1 request in 100 began {duration(spread.at[99])} late or more. "
            "The latencies hold that delay. Lower --rate, or give the generator a core of its own"
        )
