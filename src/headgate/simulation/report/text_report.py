"""Text report of a run.

The tables show results, latencies, tokens and engine time, fairness and engines. The HTML report uses the same tables.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from headgate.model.units import ClassName, TenantId
from headgate.simulation.report.cost_tables import bills, cost_notes, pool_costs
from headgate.simulation.report.fairness import RANKED_ARRIVALS_MIN, worst_first
from headgate.simulation.report.json_report import outcomes_by_result
from headgate.simulation.report.report import Group, SimulationReport
from headgate.simulation.report.request_result import RequestResult
from headgate.simulation.report.tally import RequestTally, share
from headgate.simulation.report.text_table import (
    EMPTY_CELL,
    WIDTH_MIN,
    Table,
    format_amount,
    format_counts,
    format_duration,
    format_percent,
    format_rate,
    latency_table,
    render_table,
)
from headgate.simulation.report.time_series import imbalance

WORST_TENANTS: Final = 8
ENGINES_SHOWN_MAX: Final = 16
SCALE_EVENTS_SHOWN_MAX: Final = 8
_REQUESTS_DROPPABLE: Final = ("arrivals/s", "goodput/s", "retries")
_RESULTS_MERGEABLE: Final = ("dropped", "failed", "cancelled", "late", "rejected")
_ENGINES_DROPPABLE: Final = ("prompt tokens", "KV max", "preempted", "up", "prefix hits", "max")
_ALWAYS_SHOWN: Final = (RequestResult.GOOD, RequestResult.LATE, RequestResult.REJECTED, RequestResult.CANCELLED)


@dataclass(frozen=True, slots=True)
class ReportTable:
    title: str
    rows: Table
    droppable: Sequence[str] = ()
    """Columns to drop if the table is too wide, in this order."""
    mergeable: Sequence[str] = ()
    """Count columns to merge if the table is still too wide, in this order."""
    notes: Sequence[str] = ()
    """Lines below the table."""


def render_text(report: SimulationReport, width: int) -> str:
    parts = [_wrapped(heading(report), width)]
    for each in tables(report):
        lines = render_table(each.rows, width, droppable=each.droppable, mergeable=each.mergeable)
        parts.append([each.title, *lines, *_wrapped(each.notes, width)])
    parts.append(_wrapped(remarks(report), width))
    return "\n\n".join("\n".join(part) for part in parts if part)


def _wrapped(sentences: Iterable[str], width: int) -> list[str]:
    width = max(width, WIDTH_MIN)
    return [line for each in sentences for line in textwrap.wrap(each, width, subsequent_indent="  ")]


def tables(report: SimulationReport) -> list[ReportTable]:
    judged = f"Worst-served tenants (at least {RANKED_ARRIVALS_MIN} requests per class)"
    candidates = [
        ReportTable("Requests by result", _requests(report), _REQUESTS_DROPPABLE, _RESULTS_MERGEABLE),
        ReportTable("Latency", _latencies(report), ("p90", "mean")),
        ReportTable("Tokens and engine time", _cost(report), ("dispatched", "engine-s wasted")),
        ReportTable("Cost", pool_costs(report), notes=list(cost_notes(report))),
        ReportTable("Bills by class and tenant", bills(report), ("wasted", "share")),
        ReportTable(
            "Fairness among tenants",
            _fairness(report),
            ("attained", "worst tenant"),
            notes=list(_fairness_notes(report)),
        ),
        ReportTable(judged, _worst_tenants(report), ("engine-s", "p50 TTFT", "good")),
        ReportTable("Autoscaling", _scaling(report), notes=list(_scaling_notes(report))),
        ReportTable("Engines", _engines(report), _ENGINES_DROPPABLE, notes=list(_engines_notes(report))),
    ]
    return [each for each in candidates if len(each.rows) > 1]


# ---------------------------------------------------------------------------------------------------- other lines
def heading(report: SimulationReport) -> Iterator[str]:
    scenario, total = report.scenario, report.total.tally
    yield scenario.title
    yield f"scheduler {report.scheduler}, seed {scenario.seed}; {fleet_summary(report)}"
    per_s = format_rate(report.per_second(total.arrivals))
    arrivals = f"{total.arrivals} requests in {_format_span(scenario.span_ns)} ({per_s}/s)"
    yield f"{arrivals}; run ended after {_format_span(report.run_summary.at)}"
    yield from target_lines(report)


def fleet_summary(report: SimulationReport) -> str:
    """Summarizes the engines in scenario order, for example `4 x h200-llama-8b in main`."""
    kinds = [(engine.profile.name, engine.pool) for engine in report.scenario.engines if not engine.standby]
    counted = [(kind, len(list(same))) for kind, same in groupby(kinds)]
    scaled = [
        f"{pool} autoscaled from {each.rules.endpoints_min} to {each.rules.endpoints_max}"
        for pool, each in report.scenario.scaling.items()
    ]
    fleet = [f"{count} x {profile} in {pool}" for (profile, pool), count in counted]
    return ", ".join([*fleet, *scaled]) or "no engines"


def target_lines(report: SimulationReport) -> Iterator[str]:
    """Describes, for each class, what makes a request good and how its clients behave."""
    for name in report.classes:
        callers = report.callers(name)
        named = (("TTFT", callers.ttft_ns), ("TPOT", callers.tpot_ns), ("E2E", callers.e2e_ns))
        wanted = ", ".join(f"{kind} ≤ {format_duration(value)}" for kind, value in named if value is not None)
        manners = (
            []
            if callers.client_timeout_ns is None
            else [f"disconnect after {format_duration(callers.client_timeout_ns)}"]
        )
        if callers.retries:
            manners.append("retry once" if callers.retries == 1 else f"retry up to {callers.retries} times")
        told = f"; clients {' and '.join(manners)}" if manners else ""
        yield f"{name}: good if {wanted or 'completed'}{told}"


def remarks(report: SimulationReport) -> Iterator[str]:
    total = report.total.tally
    for fate in (RequestResult.REJECTED, RequestResult.DROPPED, RequestResult.FAILED):
        if total.requests[fate]:
            note = _after_first_token_note(total) if fate is RequestResult.FAILED else ""
            yield f"{display_name(fate)}: {format_counts(outcomes_by_result(total, fate))}{note}"
    up_ps = sum(account.up_ns for account, _ in report.engines) * 1000
    if up_ps:
        parts = [
            f"{display_name(part)} {format_percent(ps / up_ps)}"
            for part, ps in engine_time_by_result(report)
            if ps / up_ps >= 0.0005
        ]
        yield f"engine time: {up_ps / 1e12:.0f} s, of which {', '.join(parts)}"
    if (times := imbalance([course for _, course in report.engines])) is not None and len(report.engines) > 1:
        yield f"most loaded engine: {times:.2f} times the mean requests in flight per engine"


def _after_first_token_note(total: RequestTally) -> str:
    some = total.failed_after_first_token
    who = "all" if some == total.requests[RequestResult.FAILED] else some
    return f"; {who} of them not retried because the response had started" if some else ""


def engine_time_by_result(report: SimulationReport) -> list[tuple[str, int]]:
    """Divides the engines' uptime, in picoseconds, into work by request result, unattributed work and idle time."""
    spent, accounts = report.total.tally.engine_ps, [account for account, _ in report.engines]
    worked, up = sum(each.worked_ps for each in accounts), sum(each.up_ns for each in accounts) * 1000
    parts = [(str(fate), spent[fate]) for fate in RequestResult]
    return [*parts, ("unattributed", max(worked - spent.total(), 0)), ("idle", max(up - worked, 0))]


def display_name(fate: str) -> str:
    return fate.replace("_", " ")


def _format_span(value_ns: int) -> str:
    return f"{value_ns / 1e9:.4g} s" if value_ns < 10_000 * 10**9 else f"{value_ns / 1e9:.0f} s"


# ---------------------------------------------------------------------------------------------------- the tables
def _rows(report: SimulationReport) -> list[tuple[str, Group]]:
    """Returns a row per class, if there are several, and a row for all."""
    classes = [(str(name), group) for name, group in report.classes.items()]
    return [*(classes if len(classes) > 1 else []), ("all", report.total)]


def _requests(report: SimulationReport) -> Table:
    # A result that no request had gets a column only if readers always expect it.
    total = report.total.tally
    shown = [fate for fate in RequestResult if total.requests[fate] or fate in _ALWAYS_SHOWN]
    table = [["class", "arrivals", "arrivals/s", *map(display_name, shown), "goodput/s", "attained", "retries"]]
    for name, group in _rows(report):
        tally = group.tally
        table.append(
            [
                name,
                str(tally.arrivals),
                format_rate(report.per_second(tally.arrivals)),
                *(str(tally.requests[fate]) for fate in shown),
                format_rate(report.per_second(tally.good)),
                format_percent(tally.attainment),
                str(tally.retries),
            ]
        )
    return table


def _latencies(report: SimulationReport) -> Table:
    rows = [
        (name, [("TTFT", group.ttft), ("TPOT", group.tpot), ("E2E", group.e2e), ("queue wait", group.queue_wait)])
        for name, group in _rows(report)
    ]
    return latency_table(rows, mean=True)


def _cost(report: SimulationReport) -> Table:
    table = [["class", "tokens", "tokens wasted", "engine-s", "engine-s wasted", "dispatched", "attempts mean"]]
    for name, group in _rows(report):
        tally = group.tally
        tokens, engine_ps = tally.tokens.total(), tally.engine_ps.total()
        table.append(
            [
                name,
                format_amount(tokens),
                format_percent(share(tally.tokens_wasted, tokens)),
                format_rate(engine_ps / 1e12),
                format_percent(share(tally.engine_ps_wasted, engine_ps)),
                str(tally.dispatched),
                EMPTY_CELL if tally.amplification is None else f"{tally.amplification:.3f}",
            ]
        )
    return table


def _fairness(report: SimulationReport) -> Table:
    table = [["class", "tenants", "Jain attainment", "Jain engine-s", "worst tenant", "attained"]]
    for name, group in _rows(report):
        fairness = group.fairness
        if fairness.tenants > 1:
            worst, tally = fairness.worst or (EMPTY_CELL, None)
            indices = [_format_index(fairness.jain_attainment), _format_index(fairness.jain_engine_seconds)]
            attained = EMPTY_CELL if tally is None else format_percent(tally.attainment)
            # If even the worst-served tenant has full attainment, no tenant is listed.
            who = EMPTY_CELL if tally is not None and tally.good == tally.arrivals else _truncated(worst)
            table.append([name, str(fairness.tenants), *indices, who, attained])
    return table


def _fairness_notes(report: SimulationReport) -> Iterator[str]:
    yield "Jain engine-s compares absolute amounts, so it also reflects differences in demand"
    if report.total.tally.good == report.total.tally.arrivals:
        yield "all tenants attained 100 %"
    elif (judged := _ranked_tenants(report)) and _all_good(judged):
        yield f"all tenants with at least {RANKED_ARRIVALS_MIN} requests per class attained 100 %"


def _format_index(value: float | None) -> str:
    return EMPTY_CELL if value is None else f"{value:.3f}"


def _truncated(name: str) -> str:
    return name if len(name) <= 20 else name[:19] + "…"


_RankedTenants = list[tuple[tuple[TenantId, ClassName], RequestTally]]


def _ranked_tenants(report: SimulationReport) -> _RankedTenants:
    """Returns tenants by class, lowest attainment first."""
    return worst_first(
        {
            (tenant, name): group.tally
            for name, tenants in report.tenants_by_class.items()
            for tenant, group in tenants.items()
        }
    )


def _all_good(judged: _RankedTenants) -> bool:
    return all(tally.good == tally.arrivals for _, tally in judged)


def _worst_tenants(report: SimulationReport) -> Table:
    judged = _ranked_tenants(report)
    if len(report.tenants) < 2 or _all_good(judged):
        return []
    table = [["tenant", "class", "arrivals", "good", "attained", "p50 TTFT", "p99 TTFT", "engine-s"]]
    for (tenant, name), tally in judged[:WORST_TENANTS]:
        ttft = report.tenants_by_class[name][tenant].ttft
        times = (
            [EMPTY_CELL, EMPTY_CELL]
            if ttft is None
            else [format_duration(ttft.percentiles[50]), format_duration(ttft.percentiles[99])]
        )
        counts = [str(tally.arrivals), str(tally.good), format_percent(tally.attainment)]
        table.append([tenant, _truncated(name), *counts, *times, format_rate(tally.engine_ps.total() / 1e12)])
    return table


def _scaling(report: SimulationReport) -> Table:
    table = [["pool", "at the start", "mean", "least", "most", "added", "removed"]]
    for each in report.scaling:
        counts = (each.first, min(each.desired), max(each.desired), each.added, each.removed)
        first, least, most, added, removed = map(str, counts)
        table.append([each.pool, first, f"{each.mean:.2f}", least, most, added, removed])
    return table


def _scaling_notes(report: SimulationReport) -> Iterator[str]:
    events = [event for each in report.scaling for event in each.events]
    for event in events[:SCALE_EVENTS_SHOWN_MAX]:
        at = f"at {_format_span(event.at)}, {event.pool}"
        yield f"{at}: {event.before} to {event.endpoints} endpoints: {event.reason}"
    if (more := len(events) - SCALE_EVENTS_SHOWN_MAX) > 0:
        yield f"and {more} more changes"


def _engines(report: SimulationReport) -> Table:
    table = [["engine", "up", "busy", "prompt tokens", "generated", "prefix hits", "preempted"]]
    table[0] += ["in flight", "max", "KV mean", "KV max"]
    for account, course in report.engines[:ENGINES_SHOWN_MAX]:
        table.append(
            [
                account.id,
                _format_span(account.up_ns),
                format_percent(share(account.worked_ps, account.up_ns * 1000)),
                format_amount(account.prompt_tokens),
                format_amount(account.generated_tokens),
                format_percent(share(account.prefix_hit_tokens, account.prefix_queried_tokens)),
                str(account.preemptions),
                EMPTY_CELL if course.in_flight_mean is None else format_rate(course.in_flight_mean),
                str(course.in_flight_max),
                EMPTY_CELL if course.kv_used_mean is None else f"{course.kv_used_mean:.0%}",
                f"{course.kv_used_max:.0%}",
            ]
        )
    if (more := len(report.engines) - ENGINES_SHOWN_MAX) > 0:
        table.append([f"and {more} more", *[""] * (len(table[0]) - 1)])
    return table


def _engines_notes(report: SimulationReport) -> Iterator[str]:
    most = {spec.id: spec.in_flight_max for spec in report.scenario.engines}
    over = [account.id for account, course in report.engines if course.in_flight_max > most[account.id]]
    if over and report.enforces_in_flight_max:
        who = over[0] if len(over) == 1 else f"{over[0]} and {len(over) - 1} more"
        yield f"{who} exceeded in_flight_max: cancelled requests are counted until the step ends"
    for pool in dict.fromkeys(spec.pool for spec in report.scenario.engines if spec.batching is not None):
        totals = [account for account, _ in report.engines if account.pool == pool]
        calls, requests = sum(each.calls for each in totals), sum(each.batched_requests for each in totals)
        if calls:
            wait = format_duration(round(sum(each.batch_wait_ns for each in totals) / requests))
            yield f"{pool}: {calls} calls, {requests / calls:.3g} requests per call, mean batch wait {wait}"
