"""What came of a run, for machines?

Durations are seconds, and they, rates and shares are rounded to six digits; counts are whole. A share of nothing and a
percentile of none are null. Rates are counted over the time in which requests arrived. docs/guides/simulation.md
explains each key.
"""

from headgate.model.outcome import Outcome
from headgate.model.units import ClassName
from headgate.simulation.report.course import Arrived, EndpointCourse, imbalance
from headgate.simulation.report.fairness import Fairness
from headgate.simulation.report.fate import Fate, fate_of
from headgate.simulation.report.report import Group, Report
from headgate.simulation.report.spread import Spread
from headgate.simulation.report.tally import Tally, share
from headgate.simulation.virtual.scenario import Callers
from headgate.simulation.virtual.story import EngineAccount


def figures_of(report: Report) -> dict[str, object]:
    """All of it as plain values: for the same run the same, in the same order."""
    scenario, ending = report.scenario, report.ending
    return {
        "title": scenario.title,
        "seed": scenario.seed,
        "scheduler": report.scheduler,
        "model": scenario.model,
        "span_s": seconds(scenario.span_ns),
        "elapsed_s": seconds(ending.at),
        "events": ending.events,
        "targets": {name: _targets(report.callers(name)) for name in report.classes},
        "total": _whole(report.total, report),
        "classes": {name: _whole(group, report) for name, group in report.classes.items()},
        "tenants": {name: _short(group, report) for name, group in report.tenants.items()},
        "classes_and_tenants": {
            service_class: {name: _short(group, report) for name, group in tenants.items()}
            for service_class, tenants in report.classes_and_tenants.items()
        },
        "fleet": _fleet(report),
        "engines": [_engine(account, course) for account, course in report.engines],
        "series": _series(report),
    }


# ---------------------------------------------------------------------------------------------------- requests
def _targets(callers: Callers) -> dict[str, object]:
    return {
        "ttft_s": seconds(callers.ttft_ns),
        "tpot_s": seconds(callers.tpot_ns),
        "e2e_s": seconds(callers.e2e_ns),
        "leave_s": seconds(callers.leave_ns),
        "retries": callers.retries,
        "stream": callers.stream,
    }


def _whole(group: Group, report: Report) -> dict[str, object]:
    tally = group.tally
    return {
        **_counts(tally, report),
        "outcomes": outcomes_of(tally, *Fate),
        "refusals": outcomes_of(tally, Fate.REFUSED, Fate.GIVEN_UP),
        "failed_after_first_token": tally.failed_after_first_token,
        "retries": tally.retries,
        "sent": tally.sent,
        "attempts": tally.attempts,
        "amplification": rounded(tally.amplification),
        "ttft_s": _spread(group.ttft),
        "tpot_s": _spread(group.tpot),
        "e2e_s": _spread(group.e2e),
        "queue_wait_s": _spread(group.queue_wait),
        "output_tokens": tally.output_tokens,
        **_work(tally),
        "tokens_by_fate": {str(fate): tally.tokens[fate] for fate in Fate},
        "engine_s_by_fate": {str(fate): picoseconds(tally.engine_ps[fate]) for fate in Fate},
        "fairness": _fairness(group.fairness),
    }


def _short(group: Group, report: Report) -> dict[str, object]:
    """Of one tenant: there may be thousands."""
    tally = group.tally
    return {**_counts(tally, report), "retries": tally.retries, "ttft_s": _spread(group.ttft), **_work(tally)}


def _counts(tally: Tally, report: Report) -> dict[str, object]:
    return {
        "arrivals": tally.arrivals,
        "arrivals_per_s": rounded(report.per_second(tally.arrivals)),
        "completed": tally.completed,
        "good": tally.good,
        "goodput_per_s": rounded(report.per_second(tally.good)),
        "attainment": rounded(tally.attainment),
        "fates": {str(fate): tally.requests[fate] for fate in Fate},
    }


def _work(tally: Tally) -> dict[str, object]:
    tokens, engine_ps = tally.tokens.total(), tally.engine_ps.total()
    return {
        "tokens_computed": tokens,
        "tokens_wasted": tally.tokens_wasted,
        "tokens_wasted_share": rounded(share(tally.tokens_wasted, tokens)),
        "engine_s": picoseconds(engine_ps),
        "engine_s_wasted": picoseconds(tally.engine_ps_wasted),
        "engine_s_wasted_share": rounded(share(tally.engine_ps_wasted, engine_ps)),
    }


def outcomes_of(tally: Tally, *fates: Fate) -> dict[str, int]:
    """By name, as far as any came, those that make up some fates."""
    return {
        str(each): count for each in Outcome if (count := tally.outcomes[each]) and fate_of(each, in_time=True) in fates
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


# ---------------------------------------------------------------------------------------------------- engines
def _engine(account: EngineAccount, course: EndpointCourse) -> dict[str, object]:
    return {
        "id": account.id,
        "pool": account.pool,
        "profile": account.profile,
        **_time(account.up_ns, account.worked_ps),
        "steps": account.steps,
        "prompt_tokens": account.prompt_tokens,
        "generated_tokens": account.generated_tokens,
        "prefix_hit_share": rounded(share(account.prefix_hit_tokens, account.prefix_queried_tokens)),
        "preemptions": account.preemptions,
        "in_flight_mean": rounded(course.in_flight_mean),
        "in_flight_max": course.in_flight_max,
        "kv_used_mean": rounded(course.kv_used_mean),
        "kv_used_max": rounded(course.kv_used_max),
    }


def _fleet(report: Report) -> dict[str, object]:
    accounts = [account for account, _ in report.engines]
    worked_ps = sum(each.worked_ps for each in accounts)
    return {
        "engines": len(accounts),
        **_time(sum(each.up_ns for each in accounts), worked_ps),
        "unassigned_s": picoseconds(worked_ps - report.total.tally.engine_ps.total()),
        "in_flight_max_over_mean": rounded(imbalance([course for _, course in report.engines])),
    }


def _time(up_ns: int, worked_ps: int) -> dict[str, object]:
    return {
        "up_s": seconds(up_ns),
        "busy_s": picoseconds(worked_ps),
        "idle_s": picoseconds(up_ns * 1000 - worked_ps),
        "busy_share": rounded(share(worked_ps, up_ns * 1000)),
    }


# ---------------------------------------------------------------------------------------------------- over time
def _series(report: Report) -> dict[str, object]:
    course, queued = report.course, report.course.queued
    names: list[ClassName] = report.in_order(queued)
    return {
        "bucket_s": seconds(report.arrived_in_all.bucket_ns),
        "total": _arrived(report.arrived_in_all),
        "classes": {name: _arrived(arrived) for name, arrived in report.arrived.items()},
        "at_s": [seconds(at) for at in course.at],
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


def _arrived(arrived: Arrived) -> dict[str, list[int]]:
    return {"arrivals": arrived.arrivals} | {str(fate): list(counts) for fate, counts in arrived.counts.items()}


# ---------------------------------------------------------------------------------------------------- numbers
def _spread(spread: Spread | None) -> dict[str, object] | None:
    if spread is None:
        return None
    return {
        "count": spread.count,
        "mean": rounded(spread.mean / 1e9),
        **{f"p{percent}": seconds(value) for percent, value in spread.at.items()},
        "max": seconds(spread.most),
    }


def seconds(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else rounded(duration_ns / 1e9)


def picoseconds(duration_ps: int) -> float | None:
    return rounded(duration_ps / 1e12)


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
