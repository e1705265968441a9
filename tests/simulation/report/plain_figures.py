"""Reference computation of report statistics from the complete list of requests."""

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from headgate.model.outcome import Outcome
from headgate.simulation.options import CallerBehaviour
from headgate.simulation.virtual.run_observer import RequestTrace
from headgate.simulation.virtual.scenario import Scenario

REJECTED = {
    "invalid_request",
    "model_not_found",
    "request_too_large",
    "unauthorized",
    "forbidden",
    "duplicate_request",
    "rate_limited",
    "budget_exceeded",
    "queue_full",
    "deadline_infeasible",
    "shed",
    "retry_budget_exhausted",
    "no_endpoints",
    "draining",
    "key_unverified",
    "quarantined",
}
DROPPED = {"queue_timeout", "deadline_exceeded", "evicted"}


def figures_of(stories: Sequence[RequestTrace], scenario: Scenario) -> dict[str, Any]:
    fates = [fate(each, callers(each, scenario)) for each in stories]
    good = [each for each, what in zip(stories, fates, strict=True) if what == "good"]
    bad = [each for each, what in zip(stories, fates, strict=True) if what != "good"]
    completed = [each for each in stories if each.outcome is Outcome.COMPLETED]
    sent = [each for each in stories if each.attempts]
    outcomes = Counter(str(each.outcome) for each in stories)
    seen = [each for each in stories if callers(each, scenario).stream and each.first_token_at is not None]
    paced = [each for each in seen if each.outcome is Outcome.COMPLETED and each.output_tokens > 1]
    span_s = Fraction(scenario.span_ns, 10**9)
    return {
        "arrivals": len(stories),
        "arrivals_per_s": six(Fraction(len(stories)) / span_s),
        "completed": len(completed),
        "good": len(good),
        "goodput_per_s": six(Fraction(len(good)) / span_s),
        "attainment": part(len(good), len(stories)),
        "results": {name: fates.count(name) for name in ("good", "late", "rejected", "dropped", "cancelled", "failed")},
        "outcomes": dict(outcomes),
        "rejections": {name: count for name, count in outcomes.items() if name in REJECTED | DROPPED},
        "failed_after_first_token": sum(
            what == "failed" and each.first_token_at is not None for each, what in zip(stories, fates, strict=True)
        ),
        "retries": sum(each.tries - 1 for each in stories),
        "dispatched": len(sent),
        "attempts": sum(each.attempts for each in stories),
        "amplification": part(sum(each.attempts for each in stories), len(sent)),
        "ttft_s": spread([each.first_token_at - each.arrived_at for each in seen]),  # type: ignore[operator]
        "tpot_s": spread([pace(each) for each in paced]),
        "e2e_s": spread([each.ended_at - each.arrived_at for each in completed]),
        "queue_wait_s": spread([each.waited_ns for each in sent]),
        "output_tokens": sum(each.output_tokens for each in stories),
        "tokens_computed": sum(map(tokens, stories)),
        "tokens_wasted": sum(map(tokens, bad)),
        "tokens_wasted_share": part(sum(map(tokens, bad)), sum(map(tokens, stories))),
        "engine_s": six(Fraction(sum(each.engine_ps for each in stories), 10**12)),
        "engine_s_wasted": six(Fraction(sum(each.engine_ps for each in bad), 10**12)),
        "engine_s_wasted_share": part(sum(each.engine_ps for each in bad), sum(each.engine_ps for each in stories)),
        "fairness": fairness(stories, scenario),
    }


def fairness(stories: Sequence[RequestTrace], scenario: Scenario) -> dict[str, Any]:
    names = sorted({str(each.tenant) for each in stories})
    of = {name: [each for each in stories if each.tenant == name] for name in names}
    good = {name: sum(fate(each, callers(each, scenario)) == "good" for each in of[name]) for name in names}
    attained = {name: Fraction(good[name], len(of[name])) for name in names}
    judged = [name for name in names if len(of[name]) >= 20]
    worst = min(judged, key=lambda name: (attained[name], -len(of[name]), name), default=None)
    return {
        "tenants": len(names),
        "jain_attainment": jain(list(attained.values())),
        "jain_engine_s": jain([Fraction(sum(each.engine_ps for each in of[name])) for name in names]),
        "worst_tenant": None
        if worst is None
        else {"tenant": worst, "arrivals": len(of[worst]), "attainment": six(attained[worst])},
    }


def callers(story: RequestTrace, scenario: Scenario) -> CallerBehaviour:
    return scenario.callers.get(story.service_class, CallerBehaviour())


def fate(story: RequestTrace, wishes: CallerBehaviour) -> str:
    name = str(story.outcome)
    if name != "completed":
        if name in REJECTED | DROPPED:
            return "rejected" if name in REJECTED else "dropped"
        return "cancelled" if name == "cancelled" else "failed"
    ttft_met = tpot_met = True
    if wishes.stream and story.first_token_at is not None:
        ttft_met = wishes.ttft_ns is None or story.first_token_at - story.arrived_at <= wishes.ttft_ns
        if story.output_tokens > 1:
            tpot_met = wishes.tpot_ns is None or pace(story) <= wishes.tpot_ns
    e2e_met = wishes.e2e_ns is None or story.ended_at - story.arrived_at <= wishes.e2e_ns
    return "good" if ttft_met and tpot_met and e2e_met else "late"


def pace(story: RequestTrace) -> int:
    assert story.first_token_at is not None
    return (story.ended_at - story.first_token_at) // (story.output_tokens - 1)


def tokens(story: RequestTrace) -> int:
    return story.prompt_tokens_computed + story.output_tokens_computed


def spread(values: Sequence[int]) -> dict[str, Any] | None:
    if not values:
        return None
    ordered = sorted(values)
    at = {
        f"p{each}": six(Fraction(ordered[math.ceil(Fraction(each * len(ordered), 100)) - 1], 10**9))
        for each in (50, 90, 95, 99)
    }
    mean = Fraction(sum(ordered), len(ordered)) / 10**9
    return {"count": len(ordered), "mean": six(mean), **at, "max": six(Fraction(ordered[-1], 10**9))}


def jain(values: Sequence[Fraction]) -> float | None:
    squares = sum((value * value for value in values), Fraction(0))
    return six(sum(values, Fraction(0)) ** 2 / (len(values) * squares)) if squares else None


def part(some: int, whole: int) -> float | None:
    return six(Fraction(some, whole)) if whole else None


def six(value: Fraction) -> float:
    return round(float(value), 6)
