"""Text and JSON reports of a capacity plan."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Final

from headgate.model.units import SECOND, ClassName
from headgate.planning.cases import Endpoints, Outage, PlanVerdict
from headgate.planning.plan import CapacityPlan, CurveStep, PlannedCost, peak_per_s
from headgate.planning.suggestion import alert_rules, suggested_configuration, traffic_alert_per_s
from headgate.simulation.report.text_report import ReportTable
from headgate.simulation.report.text_table import (
    WIDTH_MIN,
    Table,
    format_amount,
    format_percent,
    format_rate,
    format_usd,
    render_table,
)

_AUTOSCALED_NOTE: Final = (
    "autoscaled: the complete workload, starting with one endpoint per pool, and at most as many as planned"
)


def render_plan(plan: CapacityPlan, width: int) -> str:
    parts = [_wrapped(heading(plan), width)]
    parts += [[each.title, *render_table(each.rows, width), *_wrapped(each.notes, width)] for each in plan_tables(plan)]
    parts.append(["Suggested configuration", *suggested_configuration(plan).splitlines()])
    parts.append(["Alert rules for Prometheus", *alert_rules(plan).splitlines()])
    return "\n\n".join("\n".join(part) for part in parts)


def _wrapped(sentences: Iterable[str], width: int) -> list[str]:
    width = max(width, WIDTH_MIN)
    return [line for each in sentences for line in textwrap.wrap(each, width, subsequent_indent="  ")]


# ---------------------------------------------------------------------------------------------------- text
def heading(plan: CapacityPlan) -> Iterator[str]:
    given = plan.given
    yield given.title
    yield f"{format_endpoints(plan.endpoints)} hold the objectives with {format_percent(given.headroom)} headroom"
    if plan.endpoints != plan.endpoints_without_headroom:
        yield f"without headroom: {format_endpoints(plan.endpoints_without_headroom)}"
    yield cost_sentence(plan)
    yield step_sentence(plan)
    yield doubled_sentence(plan)
    yield window_sentence(plan)


def cost_sentence(plan: CapacityPlan) -> str:
    if not plan.cost.pools:
        return "cost unknown: no pool in the scenario has a price"
    each = f"{format_usd(plan.cost.per_request)} per request, {format_usd(plan.cost.per_1m_tokens)} per million tokens"
    return f"cost: {format_usd(plan.cost.total)} per day, {each}"


def step_sentence(plan: CapacityPlan) -> str:
    if plan.next_step is None:
        most = plan.curve[-1].traffic
        return f"next step: beyond {most:g} times the traffic"
    per_s = format_rate(peak_per_s(plan.given.workload, plan.next_step))
    told = f"next step: above {plan.next_step:.2f} times the traffic ({per_s} requests/s at the peak)"
    if plan.next_step_date is None:
        return told
    return f"{told}, on {plan.next_step_date} at {format_percent(plan.given.growth_per_month)} growth per month"


def doubled_sentence(plan: CapacityPlan) -> str:
    doubled = plan.doubled
    fleet = f"twice the traffic: {format_endpoints(doubled.endpoints)}"
    if not plan.cost.total:
        return fleet
    return f"{fleet}, {format_usd(doubled.cost.total)} per day ({doubled.cost.total / plan.cost.total:.2f} x the cost)"


def window_sentence(plan: CapacityPlan) -> str:
    given, workload = plan.given, plan.given.workload
    seeds = f"{len(given.seeds)} seeds" if len(given.seeds) > 1 else "one seed"
    told = f"{plan.cases} simulated runs with {seeds}"
    if not workload.is_shortened:
        return f"{told}, each of the complete workload of {workload.span_ns / SECOND:.4g} s"
    window = f"the busiest {workload.window_ns / SECOND:.4g} s of {workload.span_ns / SECOND:.4g} s"
    per_s = f"{format_rate(peak_per_s(workload))} requests/s"
    starts = [f"{each / SECOND:.4g} s" for each in given.pool_window_starts]
    others = f", and to the busiest window of other pools, from {' and '.join(starts)} on" if starts else ""
    return f"{told}, shortened to {window}, from {workload.start / SECOND:.4g} s on, with {per_s}{others}"


def format_endpoints(endpoints: Endpoints) -> str:
    return " and ".join(f"{count} {'endpoint' if count == 1 else 'endpoints'} in {pool}" for pool, count in endpoints)


def plan_tables(plan: CapacityPlan) -> list[ReportTable]:
    note = "a day at the workload's mean rate; a hosted provider's tokens per request are those of the busiest window"
    candidates = [
        ReportTable("Objectives", _objectives(plan)),
        ReportTable("Cost by traffic", _curve(plan), notes=[note]),
        ReportTable("What if", _what_if(plan), notes=list(_what_if_notes(plan))),
        ReportTable("Alternatives", _alternatives(plan), notes=list(_alternative_notes(plan))),
        ReportTable("Concurrency and KV cache", _littles_law(plan), notes=list(_littles_law_notes(plan))),
        ReportTable("Fixed or autoscaled", _autoscaled(plan), notes=[_AUTOSCALED_NOTE]),
    ]
    return [each for each in candidates if len(each.rows) > 1]


def _objectives(plan: CapacityPlan) -> Table:
    table = [["class", "objective", "planned fleet"]]
    for name, objective in plan.given.objectives.items():
        table.append([name, format_percent(objective), format_percent(plan.attainment.get(name))])
    return table


def _curve(plan: CapacityPlan) -> Table:
    table = [["traffic", "peak requests/s", "endpoints", "per day", "per request", "per million tokens"]]
    for each in plan.curve:
        amounts = (each.cost.total, each.cost.per_request, each.cost.per_1m_tokens)
        costs = [format_usd(amount if each.cost.pools else None) for amount in amounts]
        table.append([f"{each.traffic:g}", format_rate(each.peak_per_s), _counts(each.endpoints), *costs])
    return table


def _what_if(plan: CapacityPlan) -> Table:
    names = list(plan.given.objectives)
    table = [["event", *names, "objectives"]]
    for each in plan.what_if:
        shares = [format_percent(each.attainment.get(name)) for name in names]
        table.append([each.name, *shares, each.verdict])
    return table


def _what_if_notes(plan: CapacityPlan) -> Iterator[str]:
    yield "at the workload's own traffic; lowest share of good requests over all seeds"
    # Outages of the same duration have the same times.
    outages = {each.outage.away_ns: each.outage for each in plan.what_if if each.outage is not None}
    for away_ns, outage in outages.items():
        crash_s, window_s = outage.crash_at / SECOND, outage.window_ns / SECOND
        which = f" in {away_ns / SECOND:g} s" if len(outages) > 1 else ""
        crash = f"crashes after {crash_s:.4g} s, with all its requests"
        yield f"an endpoint that is replaced{which} {crash}; {window_s:.4g} s are simulated"
        if not outage.is_complete:
            yield f"the workload ends {window_s - crash_s:.4g} s after the crash, so the full effect may be greater"
    if any(count == 1 for _, count in plan.endpoints):
        yield "a pool with one endpoint serves nothing without it"
    for pool, names in plan.given.zones.items():
        if len(names) == 1:
            yield f"no number of endpoints in {pool} survives the loss of zone {names[0]}, which has all of them"
    if (reserve := plan.zone_reserve) is not None:
        cost = f", {format_usd(reserve.cost.total)} per day" if reserve.cost.pools else ""
        yield f"to survive the loss of any zone at the workload's traffic: {format_endpoints(reserve.endpoints)}{cost}"


def _alternatives(plan: CapacityPlan) -> Table:
    if not plan.alternatives:
        return []
    table = [["fleet", "endpoints", "per day", "compared with the plan"]]
    table.append(["the plan", _counts(plan.endpoints), format_usd(plan.cost.total if plan.cost.pools else None), ""])
    for each in plan.alternatives:
        if each.endpoints is None or each.cost is None:
            table.append([each.name, "none holds the objectives", "", ""])
        else:
            cost = format_usd(each.cost.total if each.cost.pools else None)
            table.append([each.name, _counts(each.endpoints), cost, _difference(plan, each.cost)])
    return table


def _counts(endpoints: Endpoints) -> str:
    if not endpoints:
        return "none of its own"
    return ", ".join(f"{pool} {count}" if len(endpoints) > 1 else str(count) for pool, count in endpoints)


def _difference(plan: CapacityPlan, cost: PlannedCost) -> str:
    if not cost.pools or not plan.cost.total:
        return "unknown"
    if cost.total == plan.cost.total:
        return "same cost"
    return f"{(cost.total - plan.cost.total) / plan.cost.total:+.1%}"


def _alternative_notes(plan: CapacityPlan) -> Iterator[str]:
    yield "the fewest endpoints of each fleet that hold the same objectives with the same headroom"
    for each in plan.alternatives:
        if each.problem:
            yield f"{each.name}: {each.problem}"


def _littles_law(plan: CapacityPlan) -> Table:
    law = plan.littles_law
    return [
        ["in the engines", "Little's law", "simulated", "p95", "available"],
        [
            "requests",
            format_rate(law.concurrency),
            format_rate(law.simulated_concurrency),
            str(law.simulated_concurrency_p95),
            str(sum(count * plan.given.in_flight_max[pool] for pool, count in plan.endpoints)),
        ],
        [
            "KV tokens",
            format_amount(round(law.kv_tokens)),
            format_amount(law.simulated_kv_tokens),
            format_amount(law.simulated_kv_tokens_p95),
            format_amount(law.kv_tokens_available),
        ],
    ]


def _littles_law_notes(plan: CapacityPlan) -> Iterator[str]:
    law = plan.littles_law
    rate = f"{format_rate(law.rate_per_s)} attempts/s"
    yield f"Little's law: {rate} x {law.engine_s_mean:.3g} s in the engines = {format_rate(law.concurrency)} requests"
    yield "the simulated mean covers the second half of the window, when the engines have filled up"


def _autoscaled(plan: CapacityPlan) -> Table:
    found = plan.autoscaled
    if found is None:
        return []
    fixed = [str(sum(count for _, count in plan.endpoints)), format_usd(found.fixed_cost_per_day), PlanVerdict.HELD]
    scaled = [f"{found.endpoints_mean:.2f}", format_usd(found.cost_per_day), found.verdict]
    return [["fleet", "endpoints", "per day", "objectives"], ["fixed", *fixed], ["autoscaled", *scaled]]


# ---------------------------------------------------------------------------------------------------- JSON
def plan_json(plan: CapacityPlan) -> dict[str, object]:
    """Returns the plan as plain values. Amounts are integer nano-dollars."""
    given, workload = plan.given, plan.given.workload
    return {
        "title": given.title,
        "objectives": dict(given.objectives),
        "headroom": given.headroom,
        "seeds": list(given.seeds),
        "cases": plan.cases,
        "workload": {
            "window_start_s": _seconds(workload.start),
            "window_s": _seconds(workload.window_ns),
            "pool_window_starts_s": [_seconds(each) for each in given.pool_window_starts],
            "span_s": _seconds(workload.span_ns),
            "requests": workload.arrivals,
            "peak_per_s": _rounded(peak_per_s(workload)),
        },
        "endpoints": dict(plan.endpoints),
        "endpoints_without_headroom": dict(plan.endpoints_without_headroom),
        "attainment": _shares(plan.attainment),
        "cost": _cost(plan.cost),
        "curve": [_step(each) for each in plan.curve],
        "next_step": {
            "traffic": plan.next_step,
            "days": None if plan.next_step_days is None else _rounded(plan.next_step_days),
            "date": None if plan.next_step_date is None else plan.next_step_date.isoformat(),
        },
        "what_if": [
            {
                "event": each.name,
                "endpoints": dict(each.endpoints),
                "attainment": _shares(each.attainment),
                "verdict": each.verdict,
                "window_s": _seconds(each.window_ns),
                "outage": None if each.outage is None else _outage(each.outage),
            }
            for each in plan.what_if
        ],
        "alternatives": [
            {
                "name": each.name,
                "endpoints": None if each.endpoints is None else dict(each.endpoints),
                "cost": None if each.cost is None else _cost(each.cost),
                "problem": each.problem or None,
            }
            for each in plan.alternatives
        ],
        "zone_reserve": None
        if (reserve := plan.zone_reserve) is None
        else {"endpoints": dict(reserve.endpoints), "cost": _cost(reserve.cost)},
        "littles_law": {
            name: _rounded(value) if isinstance(value, float) else value
            for name, value in asdict(plan.littles_law).items()
        },
        "autoscaled": None
        if (scaled := plan.autoscaled) is None
        else {
            "endpoints_mean": _rounded(scaled.endpoints_mean),
            "attainment": _shares(scaled.attainment),
            "verdict": scaled.verdict,
            "per_day_nano_usd": scaled.cost_per_day,
            "fixed_per_day_nano_usd": scaled.fixed_cost_per_day,
        },
        "alerts": {"requests_per_s": _rounded(traffic_alert_per_s(plan))},
        "configuration": suggested_configuration(plan),
        "alert_rules": alert_rules(plan),
    }


def _step(step: CurveStep) -> dict[str, object]:
    return {
        "traffic": step.traffic,
        "peak_per_s": _rounded(step.peak_per_s),
        "endpoints": dict(step.endpoints),
        "cost": _cost(step.cost),
    }


def _outage(outage: Outage) -> dict[str, object]:
    return {
        "endpoints": list(outage.endpoints),
        "crash_at_s": _seconds(outage.crash_at),
        "away_s": _seconds(outage.away_ns),
        "complete": outage.is_complete,
    }


def _cost(cost: PlannedCost) -> dict[str, object] | None:
    if not cost.pools:
        return None
    return {
        "per_day_nano_usd": cost.total,
        "per_request_nano_usd": cost.per_request,
        "per_1m_tokens_nano_usd": cost.per_1m_tokens,
        "requests_per_day": cost.requests,
        "tokens_per_day": cost.tokens,
        "pools": {each.pool: {"hourly_nano_usd": each.hourly, "tokens_nano_usd": each.tokens} for each in cost.pools},
    }


def _shares(shares: Mapping[ClassName, float]) -> dict[str, float]:
    return {name: _rounded(share) for name, share in shares.items()}


def _seconds(duration_ns: int) -> float:
    return _rounded(duration_ns / SECOND)


def _rounded(value: float) -> float:
    return round(value, 6)
