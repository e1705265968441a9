"""What came of a run, for people?

Plain text that reads without colour and fits the width it is given: names are shortened first, then the least needed
columns go.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from headgate.loadtest.endings import Ending
from headgate.loadtest.generator import LATE_P99_NS_MAX, Course
from headgate.loadtest.report import Result
from headgate.loadtest.tally import PERCENTILES, Spread, Tally

WIDTH_MIN: Final = 40
_NAME_CHARS_MIN: Final = 16
_GAP: Final = "  "

Table = list[list[str]]
"""Rows of cells, the heading first; the first column holds names."""


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
    offered = f"{total.offered} requests in {seconds:.4g} s ({_rate(result.per_second(total.offered))}/s){early}"
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
                _rate(result.per_second(tally.good)),
                _rate(result.tokens_per_second(tally.output_tokens)),
                str(tally.retries),
            ]
        )
    return table


def _latencies(rows: Sequence[tuple[str, Tally]]) -> Table:
    table = [["latency", "", *(f"p{percent}" for percent in PERCENTILES), "max"]]
    for name, tally in rows:
        kinds = (("TTFT", tally.ttft_ns), ("TPOT", tally.tpot_ns), ("E2E", tally.e2e_ns))
        spreads = [(kind, spread) for kind, values in kinds if (spread := Spread.of(values)) is not None]
        for number, (kind, spread) in enumerate(spreads):
            values = [duration(spread.at[percent]) for percent in PERCENTILES]
            table.append([name if number == 0 else "", kind, *values, duration(spread.most)])
    return table if len(table) > 1 else []


def _reasons(total: Tally) -> Iterator[str]:
    for ending, codes in sorted(total.codes.items()):
        yield f"{ending}: {_listed(codes)}"
    if total.retried_for:
        yield f"retried after: {_listed(total.retried_for)}"
    if total.tokens_untold:
        yield f"{total.tokens_untold} answers came without usage; their tokens are counted by events"


def _listed(codes: Mapping[str, int]) -> str:
    return ", ".join(f"{code} {count}" for code, count in sorted(codes.items(), key=lambda each: (-each[1], each[0])))


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


def _rate(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def duration(value_ns: int) -> str:
    """Three digits and a unit."""
    value = value_ns / 1e6
    if value >= 999.5:
        value /= 1000
        return f"{value:.3g} s" if value < 999.5 else f"{value:.0f} s"
    return f"{value:.3g} ms"


def lay_out(table: Table, width: int, *, spare: Sequence[str] = ()) -> list[str]:
    """The table's lines, none longer than `width` if it can be helped. `spare` columns go first, in that order."""
    if not table:
        return []
    width = max(width, WIDTH_MIN)
    for heading in spare:
        if _over(table, width) <= 0:
            break
        if heading in table[0]:
            gone = table[0].index(heading)
            table = [row[:gone] + row[gone + 1 :] for row in table]
    widths = _widths(table)
    widths[0] = max(widths[0] - max(_over(table, width, whole_names=True), 0), min(widths[0], _NAME_CHARS_MIN))
    return [_line(row, widths) for row in table]


def _widths(table: Table) -> list[int]:
    return [max(len(row[column]) for row in table) for column in range(len(table[0]))]


def _over(table: Table, width: int, *, whole_names: bool = False) -> int:
    """How much too wide the table is, with names whole or as short as they may be."""
    widths = _widths(table)
    names = widths[0] if whole_names else min(widths[0], _NAME_CHARS_MIN)
    return names + sum(widths[1:]) + len(_GAP) * (len(widths) - 1) - width


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    name = row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 1] + "…"
    cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return _GAP.join([name.ljust(widths[0]), *cells]).rstrip()
