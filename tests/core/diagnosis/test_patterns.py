"""Is each incident recognised by what belongs to it, and by nothing less?"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headgate.core.diagnosis import engines
from headgate.core.diagnosis.finding import Found, harmed
from headgate.core.diagnosis.patterns import PATTERNS, found, kv_exhausted, limit_too_low, long_prompts
from headgate.core.diagnosis.picture import EndpointLook, Picture, clearly_above, mean, more_than_chance
from headgate.core.diagnosis.seconds_seen import Seen
from headgate.model.endpoint import EndpointState
from headgate.model.speed import EngineSpeed
from headgate.model.units import ClassName
from headgate.model.verdict import Incident
from testing.builders import at, lasting
from tests.core.diagnosis.pictures import endpoint, picture, seen


def told(**facts: Any) -> Incident | None:
    one = found(picture(**facts))
    return None if one is None else one.incident


def told_by(pattern: Callable[[Picture], Found | None], **facts: Any) -> bool:
    """Whether this pattern alone finds it."""
    return pattern(picture(**facts)) is not None


def test_where_nobody_is_harmed_nothing_is_found() -> None:
    assert told(harm=False) is None
    assert not any(told_by(pattern, harm=False) for pattern in PATTERNS)


def test_harm_takes_several_and_a_share_of_all() -> None:
    assert not harmed(picture(harm=False, late={"late": 2}))
    assert not harmed(picture(harm=False, late={"late": 3}))
    assert harmed(picture(harm=False, late={"late": 5}))


# Something that we depend on


def test_an_endpoint_whose_streams_fell_silent_hangs() -> None:
    one = found(picture(harm=False, endpoints=(endpoint(silent=6), endpoint("p/2"))))

    assert one is not None
    assert one.incident is Incident.ENGINE_HANG
    assert one.sentence.endswith("has sent no token for 6 s though 5 streams are open; 1 of 2 endpoints serve.")


def test_a_single_silent_stream_is_reported_in_the_singular() -> None:
    one = found(picture(harm=False, endpoints=(endpoint(silent=120, open=1, decoding=1), endpoint("p/2"))))

    assert one is not None
    assert "though 1 stream is open;" in one.sentence
    assert "of the configuration file" in one.action


@pytest.mark.parametrize(("decoding", "silent"), [(3, 6), (2, 11), (1, 21), (0, 21)])
def test_the_fewer_streams_are_silent_the_longer_is_waited(decoding: int, silent: float) -> None:
    assert told(harm=False, endpoints=(endpoint(silent=silent - 2, decoding=decoding),)) is None
    assert told(harm=False, endpoints=(endpoint(silent=silent, decoding=decoding),)) is Incident.ENGINE_HANG


@pytest.mark.parametrize(("decoding", "silent"), [(3, 22), (2, 22), (1, 42), (0, 42)])
def test_an_endpoint_that_computes_a_long_prompt_is_given_more_time(decoding: int, silent: float) -> None:
    long: dict[str, Any] = {"decoding": decoding, "awaited_ns": EngineSpeed().prefill_ps(100_000) // 1_000}

    assert told(harm=False, endpoints=(endpoint(silent=silent - 2, **long),)) is None
    assert told(harm=False, endpoints=(endpoint(silent=silent + 1, **long),)) is Incident.ENGINE_HANG


def test_an_endpoint_that_fails_is_told_when_somebody_suffers_or_it_goes_on() -> None:
    failing: dict[str, Any] = {"failures": 3, "failing_since": at(991), "failed_at": at(992)}

    assert told(endpoints=(endpoint(**failing),)) is Incident.ENGINE_FAILING
    assert told(endpoints=(endpoint(**failing, failed_silently=True),)) is Incident.ENGINE_HANG
    assert told(harm=False, endpoints=(endpoint(**failing),)) is None
    going_on = endpoint(failures=4, failing_since=at(980), failed_at=at(996))
    assert told(harm=False, endpoints=(going_on,)) is Incident.ENGINE_FAILING
    assert told(harm=False, endpoints=(going_on,), now=at(1_007)) is None


def test_an_endpoint_that_leaves_may_be_silent() -> None:
    assert told(harm=False, endpoints=(endpoint(silent=60, leaving=True),)) is None


def test_connections_that_take_long_mean_the_network() -> None:
    assert told(transport_ns=lasting(0.05)) is Incident.SLOW_NETWORK
    assert told(transport_ns=lasting(0.015)) is not Incident.SLOW_NETWORK
    assert told(transport_ns=lasting(0.05), transport_usual_ns=lasting(0.02)) is not Incident.SLOW_NETWORK
    assert told(transport_ns=lasting(0.05), transport_usual_ns=None) is not Incident.SLOW_NETWORK
    assert told(transport_ns=None) is not Incident.SLOW_NETWORK


def test_a_slow_network_that_nobody_feels_is_not_told() -> None:
    assert told(harm=False, transport_ns=lasting(0.05)) is None
    assert told(harm=False, transport_ns=lasting(1.03)) is None


def test_one_endpoint_slower_than_the_others_is_told() -> None:
    slow = (endpoint("p/1", pace_percent=220), endpoint("p/2"), endpoint("p/3"))

    assert told(endpoints=slow) is Incident.SLOW_ENDPOINT
    assert told(endpoints=slow, harm=False) is None
    few = {"late": 3}
    assert told(endpoints=slow, harm=False, late=few) is Incident.SLOW_ENDPOINT
    hardly = (endpoint("p/1", pace_percent=180), endpoint("p/2"), endpoint("p/3"))
    assert told(endpoints=hardly, harm=False, late=few) is None
    assert told(endpoints=hardly) is Incident.SLOW_ENDPOINT
    assert told(endpoints=slow, harm=False, late=few | {"judged": 1_000}) is None
    unknown = (endpoint("p/1", pace_percent=220, paced=5), endpoint("p/2"), endpoint("p/3"))
    assert told(endpoints=unknown) is Incident.OVERLOAD


def test_engines_are_not_slow_because_requests_found_no_endpoint_before_they_returned() -> None:
    one_slow = (endpoint("p/1", pace_percent=220), endpoint("p/2"), endpoint("p/3"))
    all_slow = (endpoint("p/1", pace_percent=220), endpoint("p/2", pace_percent=200))
    missing = {"late": 20, "refused": 10, "missing": 40}
    returned = {"late": missing, "latest": seen(3)}

    assert told_by(engines.slow_endpoint, endpoints=one_slow, late=missing)
    assert not told_by(engines.slow_endpoint, endpoints=one_slow, **returned)
    assert told_by(engines.slow_endpoints, endpoints=all_slow, late=missing)
    assert not told_by(engines.slow_endpoints, endpoints=all_slow, **returned)
    assert told(late=missing) is Incident.NO_ENDPOINTS
    assert told(**returned) is None


def test_an_older_machine_among_newer_ones_is_not_slow() -> None:
    mixed = (endpoint("p/1"), endpoint("p/2"), endpoint("p/old", pace_percent=260, pace_usual_percent=250))

    assert told(endpoints=mixed) is Incident.OVERLOAD
    more = {"arrivals": 300, "prompt_tokens": 300_000}
    strained = (endpoint("p/1"), endpoint("p/2"), endpoint("p/old", pace_percent=425, pace_usual_percent=250))
    assert told(endpoints=strained) is Incident.SLOW_ENDPOINT
    assert told(endpoints=strained, late=more) is Incident.OVERLOAD
    broken = (endpoint("p/1"), endpoint("p/2"), endpoint("p/old", pace_percent=600, pace_usual_percent=250))
    assert told(endpoints=broken, late=more) is Incident.SLOW_ENDPOINT


def test_where_most_are_slower_it_is_what_they_share() -> None:
    slow = (endpoint("p/1", pace_percent=220), endpoint("p/2", pace_percent=200), endpoint("p/3", pace_percent=210))
    one = found(picture(endpoints=slow))

    assert one is not None
    assert one.incident is Incident.SLOW_ENDPOINT
    assert one.sentence.startswith("3 of 3 endpoints of pool p are 2.1 times as slow")
    assert told(endpoints=slow, late={"prompt_tokens": 300_000}) is Incident.LONG_PROMPTS
    # Engines that are asked for too much are slow as well.
    assert told(endpoints=slow, late={"arrivals": 300, "prompt_tokens": 300_000}) is Incident.OVERLOAD
    assert not told_by(engines.slow_endpoints, endpoints=slow, harm=False)


def test_an_only_endpoint_is_compared_with_itself() -> None:
    alone = (endpoint("p/1", pace_percent=220, tpot_ns=None),)

    assert told(endpoints=alone) is Incident.SLOW_ENDPOINT
    assert told(endpoints=alone, late={"prompt_tokens": 300_000}) is Incident.LONG_PROMPTS


def test_of_endpoints_that_said_too_little_none_is_slow() -> None:
    assert not told_by(engines.slow_endpoint, endpoints=(endpoint(pace_percent=None),))
    assert not told_by(engines.slow_endpoints, endpoints=(endpoint(pace_percent=None),))


def test_attempts_that_fail_everywhere_are_told_as_engines_that_fail() -> None:
    failing = {"attempts_failed": 40}

    assert told(late=failing) is Incident.ENGINE_FAILING
    assert told(late=failing, harm=False) is None
    assert told(late={"attempts_failed": 10}) is Incident.OVERLOAD
    assert told(late=failing, usual=seen(100, attempts_failed=300)) is Incident.OVERLOAD
    assert told(harm=False, late={"failed": 10}, queued=0) is Incident.ENGINE_FAILING


def test_gateway_that_cannot_send_is_reported_before_its_engines() -> None:
    unsent = {"attempts_unsent": 30, "attempts_failed": 40, "failed": 30}
    one = found(picture(late=unsent, unsent_why="too many open files"))

    assert one is not None
    assert one.incident is Incident.GATEWAY_RESOURCES
    assert "too many open files" in one.sentence
    assert told(late=unsent | {"attempts_failed": 70}) is Incident.ENGINE_FAILING
    assert told(late=unsent | {"attempts_unsent": 2}) is Incident.ENGINE_FAILING


def test_endpoints_that_were_ejected_mean_engines_that_fail() -> None:
    ejected = endpoint("p/2", state=EndpointState.EJECTED)
    one = found(picture(endpoints=(endpoint(), ejected)))

    assert one is not None
    assert one.incident is Incident.ENGINE_FAILING
    assert one.sentence == "Endpoint p/2 of pool p fails requests; 1 of 2 endpoints serve."
    others = [endpoint(f"p/{number}") for number in range(3, 8)]
    assert told(endpoints=(ejected, *others)) is Incident.OVERLOAD


NOBODY = {"late": 0, "refused": 0, "missing": 50}


def test_a_pool_without_endpoints_is_told() -> None:
    assert told(late=NOBODY, endpoints=(), queued=0) is Incident.NO_ENDPOINTS
    assert told(late=NOBODY, endpoints=(endpoint(leaving=True),), queued=0) is Incident.NO_ENDPOINTS
    assert told(late=NOBODY, queued=0) is Incident.NO_ENDPOINTS
    assert told(endpoints=()) is Incident.NO_ENDPOINTS
    assert told(late={"missing": 3}) is Incident.OVERLOAD
    assert told(late=NOBODY, latest=seen(3), queued=0) is None, "its endpoints are back"


def test_a_pool_whose_endpoints_are_starting_waits_for_them() -> None:
    starting = endpoint(state=EndpointState.WARMING, readied_at=None)

    assert told(late=NOBODY, endpoints=(starting,), queued=0) is Incident.COLD_START
    leaving = endpoint(state=EndpointState.WARMING, leaving=True)
    assert told(late=NOBODY, endpoints=(leaving,), queued=0) is Incident.NO_ENDPOINTS


# What somebody set


def full(**facts: Any) -> tuple[Any, ...]:
    return (endpoint("p/1", in_flight=4, in_flight_max=4, **facts), endpoint("p/2", in_flight=4, in_flight_max=4))


def test_places_that_are_all_taken_while_engines_have_room_are_too_few() -> None:
    assert told(endpoints=full()) is Incident.LIMIT_TOO_LOW
    assert told(endpoints=full(), tpot_ns=None) is Incident.LIMIT_TOO_LOW


@pytest.mark.parametrize(
    "facts",
    [{"waiting": 2}, {"kv_percent": 80}, {"kv_percent": None}, {"tpot_ns": None}, {"tpot_ns": lasting(0.09)}],
    ids=str,
)
def test_engines_that_have_no_room_need_no_more_places(facts: dict[str, Any]) -> None:
    assert told(endpoints=full(**facts)) is not Incident.LIMIT_TOO_LOW


def test_places_are_not_too_few_where_some_are_free_or_nobody_waits() -> None:
    assert told() is not Incident.LIMIT_TOO_LOW
    assert told(endpoints=full(), queued=0) is not Incident.LIMIT_TOO_LOW
    assert not told_by(limit_too_low, endpoints=full(), harm=False)
    assert told_by(limit_too_low, endpoints=full(), harm=False, backlog=5)
    assert not told_by(limit_too_low, endpoints=())


# Memory


def test_prompts_that_used_to_be_cached_are_told_as_a_lost_cache() -> None:
    lost = {"cached_tokens": 10_000}

    assert told(late=lost) is Incident.PREFIX_CACHE_LOST
    assert told(late={"cached_tokens": 30_000}) is not Incident.PREFIX_CACHE_LOST
    assert told(late=lost, usual=seen(100, cached_tokens=100_000)) is not Incident.PREFIX_CACHE_LOST
    assert told(late=lost, usual=seen(5)) is not Incident.PREFIX_CACHE_LOST
    assert told(late={"asked_tokens": 0}) is not Incident.PREFIX_CACHE_LOST


def test_full_caches_are_told_as_such() -> None:
    assert told(endpoints=(endpoint(kv_percent=95), endpoint(kv_percent=90))) is Incident.KV_EXHAUSTED
    assert told(endpoints=(endpoint(kv_percent=95), endpoint(kv_percent=50))) is not Incident.KV_EXHAUSTED
    assert told(endpoints=(endpoint(kv_percent=None),)) is not Incident.KV_EXHAUSTED
    assert not told_by(kv_exhausted, endpoints=(endpoint(kv_percent=95),), harm=False)


def test_kv_cache_is_exhausted_if_reservations_fill_every_endpoint_while_requests_wait() -> None:
    def full(name: str, *, kv_full: bool = True) -> EndpointLook:
        one = endpoint(name, kv_percent=79)
        return replace(one, summary=replace(one.summary, kv_full=kv_full))

    both = (full("p/1"), full("p/2"))
    one = found(picture(endpoints=both))
    assert one is not None
    assert one.incident is Incident.KV_EXHAUSTED
    assert "79% in use, the rest reserved for running requests" in one.sentence
    assert told(endpoints=both, queued=0) is not Incident.KV_EXHAUSTED
    assert told(endpoints=(full("p/1"), full("p/2", kv_full=False))) is not Incident.KV_EXHAUSTED


# What callers do


def test_a_tenant_that_brings_most_of_what_is_new_is_noisy() -> None:
    noisy = {"tenants": {"acme": 50, "bolt": 400}}
    one = found(picture(late=noisy))

    assert one is not None
    assert (one.incident, one.tenant) == (Incident.NOISY_TENANT, "bolt")


@pytest.mark.parametrize(
    "tenants",
    [{"bolt": 400}, {"acme": 300, "bolt": 330}, {"acme": 50, "bolt": 90}, {"acme": 50, "bolt": 50, "coil": 3}],
    ids=str,
)
def test_a_tenant_is_not_noisy_alone_or_with_others_or_by_little(tenants: dict[str, int]) -> None:
    assert told(late={"tenants": tenants}) is not Incident.NOISY_TENANT


def test_tenant_is_not_noisy_if_the_other_tenants_grow_by_more_than_half_its_factor() -> None:
    assert told(late={"tenants": {"acme": 160, "bolt": 240}}) is Incident.OVERLOAD
    assert told(late={"tenants": {"acme": 100, "bolt": 400}}) is Incident.NOISY_TENANT


def test_a_tenant_that_hardly_adds_to_the_whole_is_not_noisy() -> None:
    usual = seen(100, tenants={"acme": 5_000, "bolt": 50})

    assert told(late={"tenants": {"acme": 500, "bolt": 30}}, usual=usual) is not Incident.NOISY_TENANT


def test_without_knowing_what_is_usual_nobody_is_noisy() -> None:
    assert told(late={"tenants": {"acme": 50, "bolt": 400}}, usual=seen(5)) is not Incident.NOISY_TENANT


def grown(tokens: int = 300, count: int = 200, asked: int = 200) -> Seen:
    late = seen(20)
    lengths = late.of(ClassName("interactive"))
    lengths.count, lengths.tokens, lengths.asked = count, tokens * count, asked
    return late


def test_answers_that_have_grown_are_told_though_nobody_waits() -> None:
    one = found(picture(harm=False, later=grown()))

    assert one is not None
    assert (one.incident, one.service_class) == (Incident.COST_DRIFT, "interactive")
    assert "usually 100" in one.sentence


def test_answers_that_grew_are_no_reason_for_an_outage_of_another_kind() -> None:
    assert told(later=grown()) is Incident.COST_DRIFT
    assert told(later=grown(), late={"arrivals": 300, "prompt_tokens": 300_000}) is Incident.OVERLOAD
    assert told(later=grown(), late=NOBODY, queued=0) is Incident.NO_ENDPOINTS
    assert told(later=grown(), endpoints=(endpoint("p/1", pace_percent=220),)) is Incident.SLOW_ENDPOINT


def test_what_was_told_of_answers_is_taken_back_only_when_they_are_clearly_shorter() -> None:
    assert told(harm=False, later=grown(122)) is None
    assert told(harm=False, later=grown(122), told=Incident.COST_DRIFT) is Incident.COST_DRIFT
    assert told(harm=False, later=grown(112), told=Incident.COST_DRIFT) is None


def test_what_answers_cost_is_told_where_they_have_a_price() -> None:
    usual, later = seen(100), grown()
    usual.of(ClassName("interactive")).cost, later.of(ClassName("interactive")).cost = 10**9, 10**9
    one = found(picture(harm=False, later=later, usual=usual))

    assert one is not None
    assert "$0.005 a request, usually $0.001" in one.evidence[0]


@pytest.mark.parametrize("later", [grown(120), grown(count=5), grown(asked=20)], ids=["little", "few", "dwindling"])
def test_answers_have_not_grown_by_little_or_by_few_or_where_traffic_goes_away(later: Seen) -> None:
    assert told(harm=False, later=later) is None


def test_answers_of_a_class_that_is_new_have_not_grown() -> None:
    later = grown()
    later.answers[ClassName("new")] = later.answers.pop(ClassName("interactive"))

    assert told(harm=False, later=later) is None
    assert told(harm=False, later=grown(), usual=seen(5)) is None


def test_retries_on_top_of_what_is_usual_are_a_storm() -> None:
    storm = {"arrivals": 200, "retries": 100, "prompt_tokens": 200_000}

    one = found(picture(late=storm))
    assert one is not None
    assert one.incident is Incident.RETRY_STORM
    assert "`headgate explain --outcome retry_refused --since 10m`" in one.action
    assert told(late=storm | {"arrivals": 300, "prompt_tokens": 300_000}) is not Incident.RETRY_STORM
    assert told(late=storm | {"retries": 20}) is not Incident.RETRY_STORM
    assert told(late=storm | {"arrivals": 10, "retries": 9, "prompt_tokens": 10_000}) is not Incident.RETRY_STORM
    assert told(late=storm, usual=seen(5)) is not Incident.RETRY_STORM


# More than can be computed


def test_prompts_that_grew_suddenly_and_slowly_are_told_apart() -> None:
    longer = {"prompt_tokens": 300_000}

    assert told(late=longer) is Incident.LONG_PROMPTS
    assert told(late=longer, prompts_before=2_500) is Incident.PROMPT_DRIFT
    assert told(late={"prompt_tokens": 110_000}) is Incident.OVERLOAD
    assert told(late=longer, prompts_before=2_500, told=Incident.LONG_PROMPTS) is Incident.LONG_PROMPTS
    assert told(late=longer, told=Incident.PROMPT_DRIFT) is Incident.PROMPT_DRIFT
    assert not told_by(long_prompts, harm=False, late=longer)


def test_harm_while_endpoints_start_is_a_cold_start() -> None:
    starting = endpoint("p/2", state=EndpointState.WARMING, readied_at=None)

    assert told(endpoints=(endpoint(), starting)) is Incident.COLD_START
    assert told(endpoints=(endpoint(), endpoint("p/2", readied_at=at(990)))) is Incident.COLD_START
    assert told(endpoints=(endpoint(), endpoint("p/2", readied_at=None))) is Incident.OVERLOAD
    leaving = endpoint("p/2", state=EndpointState.WARMING, leaving=True)
    assert told(endpoints=(endpoint(), leaving)) is Incident.OVERLOAD


def test_cold_start_names_endpoints_that_start_and_those_that_have_started() -> None:
    warming = [endpoint(f"p/{number}", state=EndpointState.WARMING, readied_at=None) for number in (2, 3)]
    one = found(picture(endpoints=(endpoint(), *warming)))
    assert one is not None
    assert one.sentence == "Pool p waits for 2 endpoints that are starting; 1 serve."

    started = [endpoint(f"p/{number}", readied_at=at(990)) for number in (2, 3)]
    one = found(picture(endpoints=(endpoint(), *started)))
    assert one is not None
    assert one.sentence == "2 endpoints have joined pool p within the last 20 s; 3 serve, and the backlog remains."
    assert "starting" not in " ".join((one.sentence, *one.evidence, one.action))

    one = found(picture(endpoints=(endpoint(), warming[0], started[1])))
    assert one is not None
    assert one.sentence == "Pool p waits for 1 endpoint that is starting; 2 serve."
    assert one.evidence[0].startswith("1 endpoint is starting, the longest for ")


def test_at_the_start_of_all_every_endpoint_is_new() -> None:
    assert told(endpoints=(endpoint(readied_at=at(990)),), usual=Seen()) is Incident.OVERLOAD


def test_what_has_no_particular_shape_is_an_overload() -> None:
    assert told() is Incident.OVERLOAD
    assert told(endpoints=(endpoint(kv_percent=None),)) is Incident.OVERLOAD


def test_lateness_without_a_queue_is_the_engines() -> None:
    late = {"refused": 0}
    one = found(picture(late=late, queued=0))

    assert one is not None
    assert one.incident is Incident.SLOW_ENDPOINT
    assert "though nothing waits for them here" in one.sentence
    assert told(late=late, queued=0, level=1) is Incident.OVERLOAD


@pytest.mark.parametrize("kind", ["late", "slow", "refused", "missing", "failed"])
@pytest.mark.parametrize("endpoints", [(), (endpoint(),)], ids=["none", "one"])
def test_whoever_is_harmed_hears_of_some_cause(kind: str, endpoints: tuple[Any, ...]) -> None:
    assert told(harm=False, late={kind: 50}, queued=0, endpoints=endpoints) is not None


def test_before_anything_is_usual_an_overload_must_be_plain() -> None:
    assert told(usual=Seen()) is Incident.OVERLOAD
    assert told(usual=Seen(), late={"late": 5, "refused": 2}) is None


# How sure a mean is


def test_a_mean_of_nothing_is_above_nothing() -> None:
    assert mean(5, 0) == 0
    above = {"total": 0, "count": 0, "usual_total": 1, "usual_squares": 1, "usual_count": 1, "percent": 100}
    assert not clearly_above(**above)
    assert not clearly_above(**above | {"count": 1, "usual_count": 0})


def test_what_chance_brings_is_no_more_than_usual() -> None:
    assert not more_than_chance(100, 100)
    assert not more_than_chance(120, 100)
    assert more_than_chance(150, 100)
