"""Tests for the patterns that recognise incidents."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headgate.core.diagnosis import engine_patterns
from headgate.core.diagnosis.finding import IncidentFinding, callers_harmed
from headgate.core.diagnosis.patterns import PATTERNS, find_incident, kv_exhausted, limit_too_low, long_prompts
from headgate.core.diagnosis.pool_observation import (
    EndpointObservation,
    PoolObservation,
    clearly_above,
    mean,
    more_than_chance,
)
from headgate.core.diagnosis.window_counts import WindowCounts
from headgate.model.endpoint import EndpointState
from headgate.model.speed import EngineSpeed
from headgate.model.units import ClassName
from headgate.model.verdict import Incident
from testing.builders import at, duration
from tests.core.diagnosis.pictures import endpoint, picture, seen


def told(**facts: Any) -> Incident | None:
    one = find_incident(picture(**facts))
    return None if one is None else one.incident


def told_by(pattern: Callable[[PoolObservation], IncidentFinding | None], **facts: Any) -> bool:
    """Returns whether this pattern matches."""
    return pattern(picture(**facts)) is not None


def test_patterns_match_only_if_callers_are_harmed() -> None:
    assert told(harm=False) is None
    assert not any(told_by(pattern, harm=False) for pattern in PATTERNS)


def test_harm_requires_a_minimum_number_and_fraction_of_requests() -> None:
    assert not callers_harmed(picture(harm=False, recent={"late": 2}))
    assert not callers_harmed(picture(harm=False, recent={"late": 3}))
    assert callers_harmed(picture(harm=False, recent={"late": 5}))


# Engines and network


def test_endpoint_with_silent_streams_is_reported_as_hanging() -> None:
    one = find_incident(picture(harm=False, endpoints=(endpoint(silent=6), endpoint("p/2"))))

    assert one is not None
    assert one.incident is Incident.ENGINE_HANG
    assert one.sentence.endswith("has sent no token for 6 s though 5 streams are open; 1 of 2 endpoints is serving.")


def test_single_silent_stream_is_reported_in_the_singular() -> None:
    one = find_incident(
        picture(harm=False, endpoints=(endpoint(silent=120, open_streams=1, decoding=1), endpoint("p/2")))
    )

    assert one is not None
    assert "though 1 stream is open;" in one.sentence
    assert "of the configuration file" in one.action


@pytest.mark.parametrize(("decoding", "silent"), [(3, 6), (2, 11), (1, 21), (0, 21)])
def test_hang_is_reported_later_if_fewer_streams_are_silent(decoding: int, silent: float) -> None:
    assert told(harm=False, endpoints=(endpoint(silent=silent - 2, decoding=decoding),)) is None
    assert told(harm=False, endpoints=(endpoint(silent=silent, decoding=decoding),)) is Incident.ENGINE_HANG


@pytest.mark.parametrize(("decoding", "silent"), [(3, 22), (2, 22), (1, 42), (0, 42)])
def test_hang_is_reported_later_during_a_long_prefill(decoding: int, silent: float) -> None:
    long: dict[str, Any] = {
        "decoding": decoding,
        "pending_prefill_at_progress_ns": EngineSpeed().prefill_ps(100_000) // 1_000,
    }

    assert told(harm=False, endpoints=(endpoint(silent=silent - 2, **long),)) is None
    assert told(harm=False, endpoints=(endpoint(silent=silent + 1, **long),)) is Incident.ENGINE_HANG


def test_failing_endpoint_is_reported_if_callers_are_harmed_or_failures_continue() -> None:
    failing: dict[str, Any] = {"failures": 3, "failing_since": at(991), "failed_at": at(992)}

    assert told(endpoints=(endpoint(**failing),)) is Incident.ENGINE_FAILING
    assert told(endpoints=(endpoint(**failing, failed_silently=True),)) is Incident.ENGINE_HANG
    assert told(harm=False, endpoints=(endpoint(**failing),)) is None
    going_on = endpoint(failures=4, failing_since=at(980), failed_at=at(996))
    assert told(harm=False, endpoints=(going_on,)) is Incident.ENGINE_FAILING
    assert told(harm=False, endpoints=(going_on,), now=at(1_007)) is None


def test_silence_on_a_leaving_endpoint_is_not_reported_as_a_hang() -> None:
    assert told(harm=False, endpoints=(endpoint(silent=60, leaving=True),)) is None


def test_slow_connections_are_reported_as_slow_network() -> None:
    assert told(transport_ns=duration(0.05)) is Incident.SLOW_NETWORK
    assert told(transport_ns=duration(0.015)) is not Incident.SLOW_NETWORK
    assert told(transport_ns=duration(0.05), transport_usual_ns=duration(0.02)) is not Incident.SLOW_NETWORK
    assert told(transport_ns=duration(0.05), transport_usual_ns=None) is not Incident.SLOW_NETWORK
    assert told(transport_ns=None) is not Incident.SLOW_NETWORK


def test_slow_network_is_reported_only_if_callers_are_harmed() -> None:
    assert told(harm=False, transport_ns=duration(0.05)) is None
    assert told(harm=False, transport_ns=duration(1.03)) is None


def test_endpoint_slower_than_usual_is_reported() -> None:
    slow = (endpoint("p/1", pace_percent=220), endpoint("p/2"), endpoint("p/3"))

    assert told(endpoints=slow) is Incident.SLOW_ENDPOINT
    assert told(endpoints=slow, harm=False) is None
    few = {"late": 3}
    assert told(endpoints=slow, harm=False, recent=few) is Incident.SLOW_ENDPOINT
    hardly = (endpoint("p/1", pace_percent=180), endpoint("p/2"), endpoint("p/3"))
    assert told(endpoints=hardly, harm=False, recent=few) is None
    assert told(endpoints=hardly) is Incident.SLOW_ENDPOINT
    assert told(endpoints=slow, harm=False, recent=few | {"judged": 1_000}) is None
    unknown = (endpoint("p/1", pace_percent=220, paced=5), endpoint("p/2"), endpoint("p/3"))
    assert told(endpoints=unknown) is Incident.OVERLOAD


def test_engines_are_not_reported_as_slow_if_requests_waited_for_engines_to_come_back() -> None:
    one_slow = (endpoint("p/1", pace_percent=220), endpoint("p/2"), endpoint("p/3"))
    all_slow = (endpoint("p/1", pace_percent=220), endpoint("p/2", pace_percent=200))
    missing = {"late": 20, "rejected": 10, "missing": 40}
    returned = {"recent": missing, "last_seconds": seen(3)}

    assert told_by(engine_patterns.slow_endpoint, endpoints=one_slow, recent=missing)
    assert not told_by(engine_patterns.slow_endpoint, endpoints=one_slow, **returned)
    assert told_by(engine_patterns.slow_endpoints, endpoints=all_slow, recent=missing)
    assert not told_by(engine_patterns.slow_endpoints, endpoints=all_slow, **returned)
    assert told(recent=missing) is Incident.NO_ENDPOINTS
    assert told(**returned) is None


def test_older_machine_among_newer_ones_is_not_reported_as_slow() -> None:
    mixed = (endpoint("p/1"), endpoint("p/2"), endpoint("p/old", pace_percent=260, pace_usual_percent=250))

    assert told(endpoints=mixed) is Incident.OVERLOAD
    more = {"arrivals": 300, "prompt_tokens": 300_000}
    strained = (endpoint("p/1"), endpoint("p/2"), endpoint("p/old", pace_percent=425, pace_usual_percent=250))
    assert told(endpoints=strained) is Incident.SLOW_ENDPOINT
    assert told(endpoints=strained, recent=more) is Incident.OVERLOAD
    broken = (endpoint("p/1"), endpoint("p/2"), endpoint("p/old", pace_percent=600, pace_usual_percent=250))
    assert told(endpoints=broken, recent=more) is Incident.SLOW_ENDPOINT


def test_slowdown_of_most_endpoints_is_reported_for_the_pool() -> None:
    slow = (endpoint("p/1", pace_percent=220), endpoint("p/2", pace_percent=200), endpoint("p/3", pace_percent=210))
    one = find_incident(picture(endpoints=slow))

    assert one is not None
    assert one.incident is Incident.SLOW_ENDPOINT
    assert one.sentence.startswith("3 of 3 endpoints in pool p take 2.1 times as long")
    assert told(endpoints=slow, recent={"prompt_tokens": 300_000}) is Incident.LONG_PROMPTS
    # Overloaded engines are slow too.
    assert told(endpoints=slow, recent={"arrivals": 300, "prompt_tokens": 300_000}) is Incident.OVERLOAD
    assert not told_by(engine_patterns.slow_endpoints, endpoints=slow, harm=False)


def test_single_endpoint_is_compared_with_its_own_usual_pace() -> None:
    alone = (endpoint("p/1", pace_percent=220, tpot_ns=None),)

    assert told(endpoints=alone) is Incident.SLOW_ENDPOINT
    assert told(endpoints=alone, recent={"prompt_tokens": 300_000}) is Incident.LONG_PROMPTS


def test_endpoint_without_a_measured_pace_is_not_reported_as_slow() -> None:
    assert not told_by(engine_patterns.slow_endpoint, endpoints=(endpoint(pace_percent=None),))
    assert not told_by(engine_patterns.slow_endpoints, endpoints=(endpoint(pace_percent=None),))


def test_failures_on_all_endpoints_are_reported_as_failing_engines() -> None:
    failing = {"attempts_failed": 40}

    assert told(recent=failing) is Incident.ENGINE_FAILING
    assert told(recent=failing, harm=False) is None
    assert told(recent={"attempts_failed": 10}) is Incident.OVERLOAD
    assert told(recent=failing, baseline=seen(100, attempts_failed=300)) is Incident.OVERLOAD
    assert told(harm=False, recent={"failed": 10}, queued=0) is Incident.ENGINE_FAILING


def test_gateway_unable_to_send_is_reported_before_failing_engines() -> None:
    unsent = {"attempts_unsent": 30, "attempts_failed": 40, "failed": 30}
    one = find_incident(picture(recent=unsent, unsent_reason="too many open files"))

    assert one is not None
    assert one.incident is Incident.GATEWAY_RESOURCES
    assert "too many open files" in one.sentence
    assert told(recent=unsent | {"attempts_failed": 70}) is Incident.ENGINE_FAILING
    assert told(recent=unsent | {"attempts_unsent": 2}) is Incident.ENGINE_FAILING


def test_ejected_endpoint_is_reported_as_failing_engine() -> None:
    ejected = endpoint("p/2", state=EndpointState.EJECTED)
    one = find_incident(picture(endpoints=(endpoint(), ejected)))

    assert one is not None
    assert one.incident is Incident.ENGINE_FAILING
    assert one.sentence == "Endpoint p/2 in pool p fails requests; 1 of 2 endpoints is serving."
    others = [endpoint(f"p/{number}") for number in range(3, 8)]
    assert told(endpoints=(ejected, *others)) is Incident.OVERLOAD


NOBODY = {"late": 0, "rejected": 0, "missing": 50}


def test_pool_without_endpoints_is_reported() -> None:
    assert told(recent=NOBODY, endpoints=(), queued=0) is Incident.NO_ENDPOINTS
    assert told(recent=NOBODY, endpoints=(endpoint(leaving=True),), queued=0) is Incident.NO_ENDPOINTS
    assert told(recent=NOBODY, queued=0) is Incident.NO_ENDPOINTS
    assert told(endpoints=()) is Incident.NO_ENDPOINTS
    assert told(recent={"missing": 3}) is Incident.OVERLOAD
    assert told(recent=NOBODY, last_seconds=seen(3), queued=0) is None, "the endpoints are back"


def test_pool_with_only_starting_endpoints_is_reported_as_cold_start() -> None:
    starting = endpoint(state=EndpointState.WARMING, readied_at=None)

    assert told(recent=NOBODY, endpoints=(starting,), queued=0) is Incident.COLD_START
    leaving = endpoint(state=EndpointState.WARMING, leaving=True)
    assert told(recent=NOBODY, endpoints=(leaving,), queued=0) is Incident.NO_ENDPOINTS


# Configuration


def full(**facts: Any) -> tuple[Any, ...]:
    return (endpoint("p/1", in_flight=4, in_flight_max=4, **facts), endpoint("p/2", in_flight=4, in_flight_max=4))


def test_in_flight_limit_is_too_low_if_all_slots_are_used_and_engines_have_capacity() -> None:
    assert told(endpoints=full()) is Incident.LIMIT_TOO_LOW
    assert told(endpoints=full(), tpot_ns=None) is Incident.LIMIT_TOO_LOW


@pytest.mark.parametrize(
    "facts",
    [{"waiting": 2}, {"kv_percent": 80}, {"kv_percent": None}, {"tpot_ns": None}, {"tpot_ns": duration(0.09)}],
    ids=str,
)
def test_in_flight_limit_is_not_too_low_if_engines_have_no_capacity(facts: dict[str, Any]) -> None:
    assert told(endpoints=full(**facts)) is not Incident.LIMIT_TOO_LOW


def test_in_flight_limit_is_not_too_low_if_slots_are_free_or_no_request_is_queued() -> None:
    assert told() is not Incident.LIMIT_TOO_LOW
    assert told(endpoints=full(), queued=0) is not Incident.LIMIT_TOO_LOW
    assert not told_by(limit_too_low, endpoints=full(), harm=False)
    assert told_by(limit_too_low, endpoints=full(), harm=False, backlog=5)
    assert not told_by(limit_too_low, endpoints=())


# Memory


def test_drop_in_cached_prompt_tokens_is_reported_as_lost_prefix_cache() -> None:
    lost = {"cached_tokens": 10_000}

    assert told(recent=lost) is Incident.PREFIX_CACHE_LOST
    assert told(recent={"cached_tokens": 30_000}) is not Incident.PREFIX_CACHE_LOST
    assert told(recent=lost, baseline=seen(100, cached_tokens=100_000)) is not Incident.PREFIX_CACHE_LOST
    assert told(recent=lost, baseline=seen(5)) is not Incident.PREFIX_CACHE_LOST
    assert told(recent={"asked_tokens": 0}) is not Incident.PREFIX_CACHE_LOST


def test_full_kv_caches_are_reported_as_exhausted() -> None:
    assert told(endpoints=(endpoint(kv_percent=95), endpoint(kv_percent=90))) is Incident.KV_EXHAUSTED
    assert told(endpoints=(endpoint(kv_percent=95), endpoint(kv_percent=50))) is not Incident.KV_EXHAUSTED
    assert told(endpoints=(endpoint(kv_percent=None),)) is not Incident.KV_EXHAUSTED
    assert not told_by(kv_exhausted, endpoints=(endpoint(kv_percent=95),), harm=False)


def test_kv_cache_is_exhausted_if_reservations_fill_every_endpoint_while_requests_are_queued() -> None:
    def full(name: str, *, kv_full: bool = True) -> EndpointObservation:
        one = endpoint(name, kv_percent=79)
        return replace(one, summary=replace(one.summary, kv_full=kv_full))

    both = (full("p/1"), full("p/2"))
    one = find_incident(picture(endpoints=both))
    assert one is not None
    assert one.incident is Incident.KV_EXHAUSTED
    assert "79% in use, the rest reserved for running requests" in one.sentence
    assert told(endpoints=both, queued=0) is not Incident.KV_EXHAUSTED
    assert told(endpoints=(full("p/1"), full("p/2", kv_full=False))) is not Incident.KV_EXHAUSTED


# Callers


def test_tenant_causing_most_of_the_additional_work_is_noisy() -> None:
    noisy = {"tenants": {"acme": 50, "bolt": 400}}
    one = find_incident(picture(recent=noisy))

    assert one is not None
    assert (one.incident, one.tenant) == (Incident.NOISY_TENANT, "bolt")


@pytest.mark.parametrize(
    "tenants",
    [{"bolt": 400}, {"acme": 300, "bolt": 330}, {"acme": 50, "bolt": 90}, {"acme": 50, "bolt": 50, "coil": 3}],
    ids=str,
)
def test_tenant_is_not_noisy_if_it_is_the_only_one_or_its_growth_is_small_or_shared(tenants: dict[str, int]) -> None:
    assert told(recent={"tenants": tenants}) is not Incident.NOISY_TENANT


def test_tenant_is_not_noisy_if_the_other_tenants_grow_by_more_than_half_its_factor() -> None:
    assert told(recent={"tenants": {"acme": 160, "bolt": 240}}) is Incident.OVERLOAD
    assert told(recent={"tenants": {"acme": 100, "bolt": 400}}) is Incident.NOISY_TENANT


def test_tenant_with_a_small_share_of_the_total_work_is_not_noisy() -> None:
    usual = seen(100, tenants={"acme": 5_000, "bolt": 50})

    assert told(recent={"tenants": {"acme": 500, "bolt": 30}}, baseline=usual) is not Incident.NOISY_TENANT


def test_no_tenant_is_noisy_without_a_baseline() -> None:
    assert told(recent={"tenants": {"acme": 50, "bolt": 400}}, baseline=seen(5)) is not Incident.NOISY_TENANT


def grown(tokens: int = 300, count: int = 200, asked: int = 200) -> WindowCounts:
    late = seen(20)
    lengths = late.lengths_of(ClassName("interactive"))
    lengths.count, lengths.tokens, lengths.asked = count, tokens * count, asked
    return late


def test_longer_responses_are_reported_as_cost_drift_without_harm() -> None:
    one = find_incident(picture(harm=False, longer_window=grown()))

    assert one is not None
    assert (one.incident, one.service_class) == (Incident.COST_DRIFT, "interactive")
    assert "from the usual 100 to" in one.sentence


def test_cost_drift_does_not_hide_another_incident() -> None:
    assert told(longer_window=grown()) is Incident.COST_DRIFT
    assert told(longer_window=grown(), recent={"arrivals": 300, "prompt_tokens": 300_000}) is Incident.OVERLOAD
    assert told(longer_window=grown(), recent=NOBODY, queued=0) is Incident.NO_ENDPOINTS
    assert told(longer_window=grown(), endpoints=(endpoint("p/1", pace_percent=220),)) is Incident.SLOW_ENDPOINT


def test_cost_drift_is_withdrawn_only_if_responses_are_clearly_shorter() -> None:
    assert told(harm=False, longer_window=grown(122)) is None
    assert told(harm=False, longer_window=grown(122), reported=Incident.COST_DRIFT) is Incident.COST_DRIFT
    assert told(harm=False, longer_window=grown(112), reported=Incident.COST_DRIFT) is None


def test_cost_drift_shows_cost_per_request_if_responses_have_a_price() -> None:
    usual, later = seen(100), grown()
    usual.lengths_of(ClassName("interactive")).cost, later.lengths_of(ClassName("interactive")).cost = 10**9, 10**9
    one = find_incident(picture(harm=False, longer_window=later, baseline=usual))

    assert one is not None
    assert "$0.005 a request, usually $0.001" in one.evidence[0]


@pytest.mark.parametrize(
    "later", [grown(120), grown(count=5), grown(asked=20)], ids=["small growth", "few responses", "falling traffic"]
)
def test_cost_drift_requires_clear_growth_enough_responses_and_steady_traffic(later: WindowCounts) -> None:
    assert told(harm=False, longer_window=later) is None


def test_responses_in_a_new_class_are_not_reported_as_cost_drift() -> None:
    later = grown()
    later.answers[ClassName("new")] = later.answers.pop(ClassName("interactive"))

    assert told(harm=False, longer_window=later) is None
    assert told(harm=False, longer_window=grown(), baseline=seen(5)) is None


def test_retries_on_top_of_normal_traffic_are_reported_as_a_retry_storm() -> None:
    storm = {"arrivals": 200, "retries": 100, "prompt_tokens": 200_000}

    one = find_incident(picture(recent=storm))
    assert one is not None
    assert one.incident is Incident.RETRY_STORM
    assert "`headgate explain --outcome retry_budget_exhausted --since 10m`" in one.action
    assert told(recent=storm | {"arrivals": 300, "prompt_tokens": 300_000}) is not Incident.RETRY_STORM
    assert told(recent=storm | {"retries": 20}) is not Incident.RETRY_STORM
    assert told(recent=storm | {"arrivals": 10, "retries": 9, "prompt_tokens": 10_000}) is not Incident.RETRY_STORM
    assert told(recent=storm, baseline=seen(5)) is not Incident.RETRY_STORM


# Capacity


def test_sudden_and_slow_prompt_growth_are_distinguished() -> None:
    longer = {"prompt_tokens": 300_000}

    assert told(recent=longer) is Incident.LONG_PROMPTS
    assert told(recent=longer, earlier_prompt_tokens=2_500) is Incident.PROMPT_DRIFT
    assert told(recent={"prompt_tokens": 110_000}) is Incident.OVERLOAD
    assert told(recent=longer, earlier_prompt_tokens=2_500, reported=Incident.LONG_PROMPTS) is Incident.LONG_PROMPTS
    assert told(recent=longer, reported=Incident.PROMPT_DRIFT) is Incident.PROMPT_DRIFT
    assert not told_by(long_prompts, harm=False, recent=longer)


def test_harm_while_endpoints_are_starting_is_reported_as_cold_start() -> None:
    starting = endpoint("p/2", state=EndpointState.WARMING, readied_at=None)

    assert told(endpoints=(endpoint(), starting)) is Incident.COLD_START
    assert told(endpoints=(endpoint(), endpoint("p/2", readied_at=at(990)))) is Incident.COLD_START
    assert told(endpoints=(endpoint(), endpoint("p/2", readied_at=None))) is Incident.OVERLOAD
    leaving = endpoint("p/2", state=EndpointState.WARMING, leaving=True)
    assert told(endpoints=(endpoint(), leaving)) is Incident.OVERLOAD


def test_cold_start_lists_endpoints_that_are_starting_and_those_that_have_started() -> None:
    warming = [endpoint(f"p/{number}", state=EndpointState.WARMING, readied_at=None) for number in (2, 3)]
    one = find_incident(picture(endpoints=(endpoint(), *warming)))
    assert one is not None
    assert one.sentence == "Pool p is waiting for 2 starting endpoints; 1 is serving."

    started = [endpoint(f"p/{number}", readied_at=at(990)) for number in (2, 3)]
    one = find_incident(picture(endpoints=(endpoint(), *started)))
    assert one is not None
    assert (
        one.sentence == "2 endpoints have joined pool p within the last 20 s; 3 are serving, and the backlog remains."
    )
    assert "starting" not in " ".join((one.sentence, *one.evidence, one.action))

    one = find_incident(picture(endpoints=(endpoint(), warming[0], started[1])))
    assert one is not None
    assert one.sentence == "Pool p is waiting for 1 starting endpoint; 2 are serving."
    assert one.evidence[0].startswith("1 endpoint is starting, the longest for ")


def test_cold_start_is_reported_only_with_a_baseline() -> None:
    assert told(endpoints=(endpoint(readied_at=at(990)),), baseline=WindowCounts()) is Incident.OVERLOAD


def test_harm_without_a_specific_pattern_is_reported_as_overload() -> None:
    assert told() is Incident.OVERLOAD
    assert told(endpoints=(endpoint(kv_percent=None),)) is Incident.OVERLOAD


def test_late_responses_without_a_queue_are_attributed_to_slow_endpoints() -> None:
    late = {"rejected": 0}
    one = find_incident(picture(recent=late, queued=0))

    assert one is not None
    assert one.incident is Incident.SLOW_ENDPOINT
    assert "although no requests are queued in the gateway" in one.sentence
    assert told(recent=late, queued=0, level=1) is Incident.OVERLOAD


@pytest.mark.parametrize("kind", ["late", "slow", "rejected", "missing", "failed"])
@pytest.mark.parametrize("endpoints", [(), (endpoint(),)], ids=["none", "one"])
def test_every_kind_of_harm_produces_a_finding(kind: str, endpoints: tuple[Any, ...]) -> None:
    assert told(harm=False, recent={kind: 50}, queued=0, endpoints=endpoints) is not None


def test_overload_without_a_baseline_requires_clear_harm() -> None:
    assert told(baseline=WindowCounts()) is Incident.OVERLOAD
    assert told(baseline=WindowCounts(), recent={"late": 5, "rejected": 2}) is None


# Statistical significance


def test_mean_without_samples_does_not_exceed_another_mean() -> None:
    assert mean(5, 0) == 0
    above = {"total": 0, "count": 0, "usual_total": 1, "usual_squares": 1, "usual_count": 1, "percent": 100}
    assert not clearly_above(**above)
    assert not clearly_above(**above | {"count": 1, "usual_count": 0})


def test_random_variation_does_not_exceed_the_normal_range() -> None:
    assert not more_than_chance(100, 100)
    assert not more_than_chance(120, 100)
    assert more_than_chance(150, 100)


# Singular and plural


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"recent": {"attempts_failed": 1}, "endpoints": (endpoint(silent=120),)}, "1 attempt failed in 10 s"),
        ({"endpoints": (endpoint(silent=120, in_flight=1),)}, "; 1 request in flight"),
        ({"endpoints": (endpoint(silent=120), endpoint("p/2"))}, "; 1 of 2 endpoints is serving."),
        ({"endpoints": (endpoint(),), "queued": 1}, "more requests than its 1 endpoint can process."),
        ({"queued": 1, "recent": {"rejected": 1}}, "1 request is queued; 1 was rejected in the last 10 s"),
        ({"queued": 1, "endpoints": (endpoint(in_flight=1, in_flight_max=1),)}, "The only slot of pool p is in use"),
        ({"endpoints": (endpoint(kv_percent=95, waiting=1),)}, "; 1 request queued in engines"),
        ({"endpoints": (endpoint(pace_percent=220),)}, "1 of 1 endpoint in pool p takes 2.2 times as long"),
        ({"queued": 0, "recent": {"late": 1, "rejected": 0, "slow": 30}}, "1 first token was late and 30 responses"),
        ({"endpoints": (), "recent": {"missing": 1}}, "1 request had no endpoint"),
        ({"recent": {"attempts_failed": 40, "failed": 1}}, "1 request failed permanently"),
        ({"harm": False, "recent": {"late": 1}, "queued": 9, "backlog": 9}, "1 of 100 requests was late or not served"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_verdict_texts_use_the_singular_for_one(facts: dict[str, Any], text: str) -> None:
    one = find_incident(picture(**facts))

    assert one is not None
    assert text in "\n".join((one.sentence, *one.evidence))
