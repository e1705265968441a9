"""What came of a run, for people?

Plain tables, for a terminal here and for a page elsewhere: what became of the requests, how long they took, what they
cost, how evenly tenants were served, and what the engines did.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from headgate.model.units import ClassName, TenantId
from headgate.simulation.report.course import imbalance
from headgate.simulation.report.fairness import JUDGED_ARRIVALS_MIN, worst_first
from headgate.simulation.report.fate import Fate
from headgate.simulation.report.figures import outcomes_of
from headgate.simulation.report.layout import (
    NOTHING,
    WIDTH_MIN,
    Table,
    amount,
    duration,
    latency_table,
    lay_out,
    listed,
    percent,
    rate,
)
from headgate.simulation.report.report import Group, Report
from headgate.simulation.report.tally import Tally, share

WORST_TENANTS: Final = 8
ENGINES_SHOWN_MAX: Final = 16
_REQUESTS_SPARE: Final = ("arrivals/s", "goodput/s", "retries")
_FATES_SUMMED: Final = ("given up", "failed", "left", "late", "refused")
_ENGINES_SPARE: Final = ("prompt tokens", "KV max", "preempted", "up", "prefix hits", "max")
_ALWAYS_SHOWN: Final = (Fate.GOOD, Fate.LATE, Fate.REFUSED, Fate.LEFT)


@dataclass(frozen=True, slots=True)
class Titled:
    title: str
    rows: Table
    spare: Sequence[str] = ()
    """The columns that can go where there is no room, in that order."""
    summed: Sequence[str] = ()
    """The columns of counts that are told together where there is no room still, in that order."""
    notes: Sequence[str] = ()
    """What stands below it."""


def text(report: Report, width: int) -> str:
    parts = [_wrapped(heading(report), width)]
    for each in tables(report):
        lines = lay_out(each.rows, width, spare=each.spare, summed=each.summed)
        parts.append([each.title, *lines, *_wrapped(each.notes, width)])
    parts.append(_wrapped(remarks(report), width))
    return "\n\n".join("\n".join(part) for part in parts if part)


def _wrapped(sentences: Iterable[str], width: int) -> list[str]:
    width = max(width, WIDTH_MIN)
    return [line for each in sentences for line in textwrap.wrap(each, width, subsequent_indent="  ")]


def tables(report: Report) -> list[Titled]:
    judged = f"The worst-off tenants with at least {JUDGED_ARRIVALS_MIN} requests of a class"
    candidates = [
        Titled("What became of the requests", _requests(report), _REQUESTS_SPARE, _FATES_SUMMED),
        Titled("How long it took", _latencies(report), ("p90", "mean")),
        Titled("What it cost", _cost(report), ("sent", "engine-s wasted")),
        Titled(
            "How evenly tenants were served",
            _fairness(report),
            ("attained", "worst tenant"),
            notes=list(_fairness_notes(report)),
        ),
        Titled(judged, _worst(report), ("engine-s", "p50 TTFT", "good")),
        Titled("Engines", _engines(report), _ENGINES_SPARE, notes=list(_engines_notes(report))),
    ]
    return [each for each in candidates if len(each.rows) > 1]


# ---------------------------------------------------------------------------------------------------- around them
def heading(report: Report) -> Iterator[str]:
    scenario, total = report.scenario, report.total.tally
    yield scenario.title
    yield f"scheduler {report.scheduler}, seed {scenario.seed}; {fleet(report)}"
    arrivals = f"{total.arrivals} requests in {_span(scenario.span_ns)} ({rate(report.per_second(total.arrivals))}/s)"
    yield f"{arrivals}, over after {_span(report.ending.at)}"
    yield from wishes(report)


def fleet(report: Report) -> str:
    """As `4 x h200-llama-8b in main`, in the order of the scenario."""
    kinds = [(engine.profile.name, engine.pool) for engine in report.scenario.engines]
    counted = [(kind, len(list(same))) for kind, same in groupby(kinds)]
    return ", ".join(f"{count} x {profile} in {pool}" for (profile, pool), count in counted) or "no engines"


def wishes(report: Report) -> Iterator[str]:
    """What makes a request of each class a good one."""
    for name in report.classes:
        callers = report.callers(name)
        named = (("TTFT", callers.ttft_ns), ("TPOT", callers.tpot_ns), ("E2E", callers.e2e_ns))
        wanted = ", ".join(f"{kind} ≤ {duration(value)}" for kind, value in named if value is not None)
        manners = [] if callers.leave_ns is None else [f"leave after {duration(callers.leave_ns)}"]
        if callers.retries:
            manners.append("retry once" if callers.retries == 1 else f"retry up to {callers.retries} times")
        told = f"; callers {' and '.join(manners)}" if manners else ""
        yield f"{name} is good with {wanted or 'any complete answer'}{told}"


def remarks(report: Report) -> Iterator[str]:
    total = report.total.tally
    for fate in (Fate.REFUSED, Fate.GIVEN_UP, Fate.FAILED):
        if total.requests[fate]:
            yield f"{named(fate)}: {listed(outcomes_of(total, fate))}{_unretried(total) if fate is Fate.FAILED else ''}"
    up_ps = sum(account.up_ns for account, _ in report.engines) * 1000
    if up_ps:
        parts = [f"{named(part)} {percent(ps / up_ps)}" for part, ps in engine_time(report) if ps / up_ps >= 0.0005]
        yield f"engine-seconds: {up_ps / 1e12:.0f} up, of which {', '.join(parts)}"
    if (times := imbalance([course for _, course in report.engines])) is not None and len(report.engines) > 1:
        yield f"the fullest engine held {times:.2f} times the mean of those up with it"


def _unretried(total: Tally) -> str:
    some = total.failed_after_first_token
    who = "all" if some == total.requests[Fate.FAILED] else some
    return f"; {who} of them after the first token, and so not retried" if some else ""


def engine_time(report: Report) -> list[tuple[str, int]]:
    """Where the time went in which engines were up, in picoseconds; with the work that no request is charged for."""
    spent, accounts = report.total.tally.engine_ps, [account for account, _ in report.engines]
    worked, up = sum(each.worked_ps for each in accounts), sum(each.up_ns for each in accounts) * 1000
    parts = [(str(fate), spent[fate]) for fate in Fate]
    return [*parts, ("unassigned", max(worked - spent.total(), 0)), ("idle", max(up - worked, 0))]


def named(fate: str) -> str:
    return fate.replace("_", " ")


def _span(value_ns: int) -> str:
    return f"{value_ns / 1e9:.4g} s" if value_ns < 10_000 * 10**9 else f"{value_ns / 1e9:.0f} s"


# ---------------------------------------------------------------------------------------------------- the tables
def _rows(report: Report) -> list[tuple[str, Group]]:
    """A row for each class where there are several, and one for all."""
    classes = [(str(name), group) for name, group in report.classes.items()]
    return [*(classes if len(classes) > 1 else []), ("all", report.total)]


def _requests(report: Report) -> Table:
    # A fate that nobody met needs a column only if it is one that everybody looks for.
    total = report.total.tally
    shown = [fate for fate in Fate if total.requests[fate] or fate in _ALWAYS_SHOWN]
    table = [["class", "arrivals", "arrivals/s", *map(named, shown), "goodput/s", "attained", "retries"]]
    for name, group in _rows(report):
        tally = group.tally
        table.append(
            [
                name,
                str(tally.arrivals),
                rate(report.per_second(tally.arrivals)),
                *(str(tally.requests[fate]) for fate in shown),
                rate(report.per_second(tally.good)),
                percent(tally.attainment),
                str(tally.retries),
            ]
        )
    return table


def _latencies(report: Report) -> Table:
    rows = [
        (name, [("TTFT", group.ttft), ("TPOT", group.tpot), ("E2E", group.e2e), ("queue wait", group.queue_wait)])
        for name, group in _rows(report)
    ]
    return latency_table(rows, mean=True)


def _cost(report: Report) -> Table:
    table = [["class", "tokens", "tokens wasted", "engine-s", "engine-s wasted", "sent", "attempts each"]]
    for name, group in _rows(report):
        tally = group.tally
        tokens, engine_ps = tally.tokens.total(), tally.engine_ps.total()
        table.append(
            [
                name,
                amount(tokens),
                percent(share(tally.tokens_wasted, tokens)),
                rate(engine_ps / 1e12),
                percent(share(tally.engine_ps_wasted, engine_ps)),
                str(tally.sent),
                NOTHING if tally.amplification is None else f"{tally.amplification:.3f}",
            ]
        )
    return table


def _fairness(report: Report) -> Table:
    table = [["class", "tenants", "Jain of attainment", "Jain of engine-s", "worst tenant", "attained"]]
    for name, group in _rows(report):
        fairness = group.fairness
        if fairness.tenants > 1:
            worst, tally = fairness.worst or (NOTHING, None)
            indices = [_index(fairness.jain_attainment), _index(fairness.jain_engine_seconds)]
            attained = NOTHING if tally is None else percent(tally.attainment)
            # Where the worst off gets everything, nobody is.
            who = NOTHING if tally is not None and tally.good == tally.arrivals else _short(worst)
            table.append([name, str(fairness.tenants), *indices, who, attained])
    return table


def _fairness_notes(report: Report) -> Iterator[str]:
    yield "Jain of engine-s measures how even the amounts are, and so follows what tenants ask for"
    if report.total.tally.good == report.total.tally.arrivals:
        yield "all tenants at 100 %"
    elif (judged := _judged(report)) and _all_good(judged):
        yield f"all tenants with at least {JUDGED_ARRIVALS_MIN} requests of a class at 100 %"


def _index(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}"


def _short(name: str) -> str:
    return name if len(name) <= 20 else name[:19] + "…"


_Judged = list[tuple[tuple[TenantId, ClassName], Tally]]


def _judged(report: Report) -> _Judged:
    """The tenants of each class, the worst off first."""
    return worst_first(
        {
            (tenant, name): group.tally
            for name, tenants in report.classes_and_tenants.items()
            for tenant, group in tenants.items()
        }
    )


def _all_good(judged: _Judged) -> bool:
    return all(tally.good == tally.arrivals for _, tally in judged)


def _worst(report: Report) -> Table:
    judged = _judged(report)
    if len(report.tenants) < 2 or _all_good(judged):
        return []
    table = [["tenant", "class", "arrivals", "good", "attained", "p50 TTFT", "p99 TTFT", "engine-s"]]
    for (tenant, name), tally in judged[:WORST_TENANTS]:
        ttft = report.classes_and_tenants[name][tenant].ttft
        times = [NOTHING, NOTHING] if ttft is None else [duration(ttft.at[50]), duration(ttft.at[99])]
        counts = [str(tally.arrivals), str(tally.good), percent(tally.attainment)]
        table.append([tenant, _short(name), *counts, *times, rate(tally.engine_ps.total() / 1e12)])
    return table


def _engines(report: Report) -> Table:
    table = [["engine", "up", "busy", "prompt tokens", "generated", "prefix hits", "preempted"]]
    table[0] += ["in flight", "max", "KV mean", "KV max"]
    for account, course in report.engines[:ENGINES_SHOWN_MAX]:
        table.append(
            [
                account.id,
                _span(account.up_ns),
                percent(share(account.worked_ps, account.up_ns * 1000)),
                amount(account.prompt_tokens),
                amount(account.generated_tokens),
                percent(share(account.prefix_hit_tokens, account.prefix_queried_tokens)),
                str(account.preemptions),
                NOTHING if course.in_flight_mean is None else rate(course.in_flight_mean),
                str(course.in_flight_max),
                NOTHING if course.kv_used_mean is None else f"{course.kv_used_mean:.0%}",
                f"{course.kv_used_max:.0%}",
            ]
        )
    if (more := len(report.engines) - ENGINES_SHOWN_MAX) > 0:
        table.append([f"and {more} more", *[""] * (len(table[0]) - 1)])
    return table


def _engines_notes(report: Report) -> Iterator[str]:
    most = {spec.id: spec.in_flight_max for spec in report.scenario.engines}
    over = [account.id for account, course in report.engines if course.in_flight_max > most[account.id]]
    if over and report.keeps_in_flight_max:
        who = over[0] if len(over) == 1 else f"{over[0]} and {len(over) - 1} more"
        yield f"{who} held more than in_flight_max: callers that left count until their step ends"
