"""JSON report of a run.

Durations are in seconds. Durations, rates and shares are rounded to six decimal places, and counts are integers. A
share with a zero denominator is null, as is a percentile of no values. Rates are relative to the duration of the
traffic. docs/guides/simulation.md explains each key.
"""

from headgate.model.outcome import Outcome
from headgate.model.units import MINUTE, ClassName
from headgate.simulation.options import CallerBehaviour
from headgate.simulation.report.cost import PoolCost, RunCost, cost_per
from headgate.simulation.report.fairness import Fairness
from headgate.simulation.report.latency_summary import LatencySummary
from headgate.simulation.report.report import Group, SimulationReport
from headgate.simulation.report.request_result import RequestResult, result_of
from headgate.simulation.report.scaling import ScalingSummary
from headgate.simulation.report.tally import RequestTally, share
from headgate.simulation.report.time_series import ArrivalSeries, EndpointSeries, imbalance
from headgate.simulation.virtual.run_observer import EngineTotals


def json_report(report: SimulationReport) -> dict[str, object]:
    """Returns the report as plain values. The same run produces the same values in the same order."""
    scenario, ending = report.scenario, report.run_summary
    return {
        "title": scenario.title,
        "seed": scenario.seed,
        "scheduler": report.scheduler,
        "model": scenario.model,
        "span_s": seconds_of_ns(scenario.span_ns),
        "elapsed_s": seconds_of_ns(ending.at),
        "events": ending.events,
        "targets": {name: _targets(report.callers(name)) for name in report.classes},
        "total": _full_group(report.total, report),
        "classes": {name: _full_group(group, report) for name, group in report.classes.items()},
        "tenants": {name: _brief_group(group, report) for name, group in report.tenants.items()},
        "tenants_by_class": {
            service_class: {name: _brief_group(group, report) for name, group in tenants.items()}
            for service_class, tenants in report.tenants_by_class.items()
        },
        "cost": _cost(report),
        "fleet": _fleet(report),
        "scaling": {each.pool: _scaling(each) for each in report.scaling},
        "engines": [_engine(account, course) for account, course in report.engines],
        "series": _series(report),
    }


# ---------------------------------------------------------------------------------------------------- requests
def _targets(callers: CallerBehaviour) -> dict[str, object]:
    return {
        "ttft_s": seconds_of_ns(callers.ttft_ns),
        "tpot_s": seconds_of_ns(callers.tpot_ns),
        "e2e_s": seconds_of_ns(callers.e2e_ns),
        "client_timeout_s": seconds_of_ns(callers.client_timeout_ns),
        "retries": callers.retries,
        "stream": callers.stream,
    }


def _full_group(group: Group, report: SimulationReport) -> dict[str, object]:
    tally = group.tally
    return {
        **_counts(tally, report),
        "outcomes": outcomes_by_result(tally, *RequestResult),
        "rejections": outcomes_by_result(tally, RequestResult.REJECTED, RequestResult.DROPPED),
        "failed_after_first_token": tally.failed_after_first_token,
        "retries": tally.retries,
        "dispatched": tally.dispatched,
        "attempts": tally.attempts,
        "amplification": rounded(tally.amplification),
        "ttft_s": _latency_summary(group.ttft),
        "tpot_s": _latency_summary(group.tpot),
        "e2e_s": _latency_summary(group.e2e),
        "queue_wait_s": _latency_summary(group.queue_wait),
        "output_tokens": tally.output_tokens,
        **_work(tally),
        "tokens_by_result": {str(fate): tally.tokens[fate] for fate in RequestResult},
        "engine_s_by_result": {str(fate): seconds_of_ps(tally.engine_ps[fate]) for fate in RequestResult},
        "fairness": _fairness(group.fairness),
    }


def _brief_group(group: Group, report: SimulationReport) -> dict[str, object]:
    """Returns a reduced set of figures, because there may be thousands of tenants."""
    tally = group.tally
    return {**_counts(tally, report), "retries": tally.retries, "ttft_s": _latency_summary(group.ttft), **_work(tally)}


def _counts(tally: RequestTally, report: SimulationReport) -> dict[str, object]:
    return {
        "arrivals": tally.arrivals,
        "arrivals_per_s": rounded(report.per_second(tally.arrivals)),
        "completed": tally.completed,
        "good": tally.good,
        "goodput_per_s": rounded(report.per_second(tally.good)),
        "attainment": rounded(tally.attainment),
        "results": {str(fate): tally.requests[fate] for fate in RequestResult},
    }


def _work(tally: RequestTally) -> dict[str, object]:
    tokens, engine_ps = tally.tokens.total(), tally.engine_ps.total()
    return {
        "tokens_computed": tokens,
        "tokens_wasted": tally.tokens_wasted,
        "tokens_wasted_share": rounded(share(tally.tokens_wasted, tokens)),
        "engine_s": seconds_of_ps(engine_ps),
        "engine_s_wasted": seconds_of_ps(tally.engine_ps_wasted),
        "engine_s_wasted_share": rounded(share(tally.engine_ps_wasted, engine_ps)),
        "billed_nano_usd": tally.billed_nano_usd.total(),
        "billed_nano_usd_wasted": tally.billed_nano_usd_wasted,
    }


def outcomes_by_result(tally: RequestTally, *fates: RequestResult) -> dict[str, int]:
    """Counts the outcomes that belong to one of `fates`, omitting zeros."""
    return {
        str(each): count
        for each in Outcome
        if (count := tally.outcomes[each]) and result_of(each, in_time=True) in fates
    }


def _fairness(fairness: Fairness) -> dict[str, object]:
    worst: dict[str, object] | None = None
    if fairness.worst is not None:
        tenant, tally = fairness.worst
        worst = {"tenant": tenant, "arrivals": tally.arrivals, "attainment": rounded(tally.attainment)}
    return {
        "tenants": fairness.tenants,
        "jain_attainment": rounded(fairness.jain_attainment),
        "jain_engine_s": rounded(fairness.jain_engine_seconds),
        "worst_tenant": worst,
    }


# ---------------------------------------------------------------------------------------------------- cost
def _cost(report: SimulationReport) -> dict[str, object] | None:
    cost, total = report.cost, report.total.tally
    if cost is None:
        return None
    return {
        **_amounts(cost),
        "per_request_nano_usd": cost_per(cost.total, total.arrivals),
        "per_good_request_nano_usd": cost_per(cost.total, total.good),
        "per_1m_tokens_nano_usd": cost_per(cost.total * 1_000_000, total.tokens_served),
        "tokens_served": total.tokens_served,
        "pools": {each.pool: _amounts(each) for each in cost.pools},
    }


def _amounts(cost: RunCost | PoolCost) -> dict[str, object]:
    return {
        "nano_usd": cost.total,
        "billed_nano_usd": cost.billed,
        "unbilled_nano_usd": cost.unbilled,
        "engine_hours": rounded(cost.paid_ns / (60 * MINUTE)),
    }


# ---------------------------------------------------------------------------------------------------- engines
def _engine(account: EngineTotals, course: EndpointSeries) -> dict[str, object]:
    return {
        "id": account.id,
        "pool": account.pool,
        "profile": account.profile,
        "paid_s": seconds_of_ns(account.paid_ns),
        **_engine_times(account.up_ns, account.worked_ps),
        "steps": account.steps,
        "prompt_tokens": account.prompt_tokens,
        "generated_tokens": account.generated_tokens,
        "prefix_hit_share": rounded(share(account.prefix_hit_tokens, account.prefix_queried_tokens)),
        "preemptions": account.preemptions,
        "in_flight_mean": rounded(course.in_flight_mean),
        "in_flight_max": course.in_flight_max,
        "kv_used_mean": rounded(course.kv_used_mean),
        "kv_used_max": rounded(course.kv_used_max),
        **_calls(account),
    }


def _calls(account: EngineTotals) -> dict[str, object]:
    if not account.calls:
        return {}
    return {
        "calls": account.calls,
        "requests_per_call": rounded(account.batched_requests / account.calls),
        "batch_wait_mean_ms": rounded(account.batch_wait_ns / account.batched_requests / 1e6),
    }


def _scaling(scaling: ScalingSummary) -> dict[str, object]:
    return {
        "endpoints_mean": rounded(scaling.mean),
        "endpoints_min": min(scaling.desired),
        "endpoints_max": max(scaling.desired),
        "added": scaling.added,
        "removed": scaling.removed,
        "events": [
            {"at_s": seconds_of_ns(each.at), "before": each.before, "endpoints": each.endpoints, "reason": each.reason}
            for each in scaling.events
        ],
    }


def _fleet(report: SimulationReport) -> dict[str, object]:
    accounts = [account for account, _ in report.engines]
    worked_ps = sum(each.worked_ps for each in accounts)
    return {
        "engines": len(accounts),
        **_engine_times(sum(each.up_ns for each in accounts), worked_ps),
        "unattributed_s": seconds_of_ps(worked_ps - report.total.tally.engine_ps.total()),
        "in_flight_max_over_mean": rounded(imbalance([course for _, course in report.engines])),
    }


def _engine_times(up_ns: int, worked_ps: int) -> dict[str, object]:
    return {
        "up_s": seconds_of_ns(up_ns),
        "busy_s": seconds_of_ps(worked_ps),
        "idle_s": seconds_of_ps(up_ns * 1000 - worked_ps),
        "busy_share": rounded(share(worked_ps, up_ns * 1000)),
    }


# ---------------------------------------------------------------------------------------------------- over time
def _series(report: SimulationReport) -> dict[str, object]:
    course, queued = report.time_series, report.time_series.queued
    names: list[ClassName] = report.sorted_classes(queued)
    return {
        "bucket_s": seconds_of_ns(report.total_arrival_series.bucket_ns),
        "total": _arrival_series(report.total_arrival_series),
        "classes": {name: _arrival_series(arrived) for name, arrived in report.arrival_series.items()},
        "sample_times_s": [seconds_of_ns(at) for at in course.at],
        "queued": {name: list(queued[name]) for name in names},
        "engines": {
            account.id: {
                "running": list(each.running),
                "waiting": list(each.waiting),
                "kv_used": [rounded(value) for value in each.kv_used],
                "up": [bool(up) for up in each.up],
            }
            for account, each in report.engines
        },
    }


def _arrival_series(arrived: ArrivalSeries) -> dict[str, list[int]]:
    return {"arrivals": arrived.arrivals} | {str(fate): list(counts) for fate, counts in arrived.counts.items()}


# ---------------------------------------------------------------------------------------------------- numbers
def _latency_summary(spread: LatencySummary | None) -> dict[str, object] | None:
    if spread is None:
        return None
    return {
        "count": spread.count,
        "mean": rounded(spread.mean / 1e9),
        **{f"p{percent}": seconds_of_ns(value) for percent, value in spread.percentiles.items()},
        "max": seconds_of_ns(spread.max_ns),
    }


def seconds_of_ns(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else rounded(duration_ns / 1e9)


def seconds_of_ps(duration_ps: int) -> float | None:
    return rounded(duration_ps / 1e12)


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
