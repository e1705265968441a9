"""Tests for failure attribution: the origin of a failed attempt and its effects."""

import pytest

from headgate.core.commands import Command, Dispatch, Eject, End
from headgate.core.events import AttemptProgress, AttemptsProgressed, EndpointMetricsReported, TimerFired
from headgate.core.routing.fault_attribution import QUARANTINE_NS, SERVED_NS_MAX, SUSPECT_NS_MAX, FaultAttribution
from headgate.core.routing.service_log import LastServed, MembersServed
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import EndpointState
from headgate.model.fault import Fault
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules, Policy, RetryRules
from headgate.model.units import SECOND, EndpointId, Instant, RequestId
from testing.builders import (
    a_model,
    a_policy,
    a_pool,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    endpoint_summary,
    failed,
    first_token,
    leaving,
    progressed,
    timed_out,
)
from testing.takeover_reports import a_successor

SERVED_S, SUSPECT_S, QUARANTINE_S = (each // SECOND for each in (SERVED_NS_MAX, SUSPECT_NS_MAX, QUARANTINE_NS))
GENEROUS = RetryRules(credit_burst=1_000_000, pool_retries_min=1_000)


def a_fleet(count: int = 4, *, failures_max: int = 3, policy: Policy | None = None) -> Scheduler:
    """Returns a scheduler with one pool of `count` endpoints and three tenants."""
    health = HealthRules(consecutive_failures_max=failures_max)
    policy = policy or a_policy(tenants=("acme", "bolt", "coil"), retry=GENEROUS, health=health)
    return a_scheduler(*(an_endpoint(f"e{number}", places=100) for number in range(1, count + 1)), policy=policy)


def where(commands: list[Command]) -> str:
    [sent] = [each for each in commands if isinstance(each, Dispatch)]
    return sent.endpoint_id


def endings(commands: list[Command]) -> list[Outcome]:
    return [each.outcome for each in commands if isinstance(each, End)]


def ejected(commands: list[Command]) -> list[str]:
    return [each.endpoint_id for each in commands if isinstance(each, Eject)]


def serve(scheduler: Scheduler, now: Instant, *, tenant: str, count: int = 4, model: str = "m") -> None:
    """Completes one of this tenant's requests on each of `count` endpoints."""
    names = [f"{tenant}-{now}-{number}" for number in range(count)]
    found = {where(scheduler.handle(arrived(name, tenant, model=model), now)) for name in names}
    assert len(found) == count
    commands_for(scheduler, now, *(completed(name) for name in names))


def fail(scheduler: Scheduler, name: str, now: Instant, *, tenant: str = "acme", fault: Fault | None) -> list[Command]:
    """Makes a request fail wherever it is sent, until the request ends. Returns all commands."""
    out = scheduler.handle(arrived(name, tenant), now)
    attempt = 1
    while not endings(out):
        out += scheduler.handle(failed(name, attempt, "HTTP 500", fault=fault), now)
        attempt += 1
    return out


# Request


def test_request_is_quarantined_if_it_fails_on_two_endpoints_that_serve_others() -> None:
    scheduler = a_fleet()
    serve(scheduler, at(0), tenant="acme")

    out = fail(scheduler, "poison", at(1), fault=Fault.RESPONSE)
    [over] = [each for each in out if isinstance(each, End)]
    assert (over.outcome, over.attempts) == (Outcome.QUARANTINED, 2)
    assert over.retry_after_ns == QUARANTINE_NS
    assert over.reason == "attempt 2: the request failed on two endpoints that serve other requests: HTTP 500"
    assert ejected(out) == []
    assert not any(each.suspected for each in scheduler.summary().endpoints)


def test_poison_requests_from_a_single_tenant_do_not_eject_endpoints() -> None:
    scheduler = a_fleet()
    out: list[Command] = []
    for number in range(40):
        serve(scheduler, at(number), tenant="acme")
        out += fail(scheduler, f"poison {number}", at(number), fault=Fault.RESPONSE)

    assert ejected(out) == []


def test_request_is_retried_if_no_other_request_was_served() -> None:
    scheduler = a_fleet()

    out = fail(scheduler, "r", at(0), fault=Fault.RESPONSE)
    assert endings(out) == [Outcome.ENGINE_ERROR]
    assert len([each for each in out if isinstance(each, Dispatch)]) == 3


@pytest.mark.parametrize(
    ("apart_s", "outcome"), [(SUSPECT_S, Outcome.QUARANTINED), (SUSPECT_S + 1, Outcome.ENGINE_ERROR)]
)
def test_two_failures_are_compared_only_within_the_suspicion_time(apart_s: int, outcome: Outcome) -> None:
    scheduler = a_fleet(
        2, policy=a_policy(retry=RetryRules(attempts_max=1), health=HealthRules(consecutive_failures_max=9))
    )
    commands_for(scheduler, at(0), arrived("r1", fingerprint="f"), arrived("r2", fingerprint="f"))
    commands_for(scheduler, at(0), failed("r1", fault=Fault.RESPONSE))
    commands_for(scheduler, at(apart_s), arrived("busy"))
    serve(scheduler, at(apart_s), tenant="acme", count=2)

    assert endings(commands_for(scheduler, at(apart_s), failed("r2", fault=Fault.RESPONSE))) == [outcome]


@pytest.mark.parametrize("fault", [None, Fault.CONNECTION, Fault.UNAVAILABLE])
def test_failures_before_the_request_was_accepted_do_not_quarantine_it(fault: Fault | None) -> None:
    scheduler = a_fleet()
    serve(scheduler, at(0), tenant="acme")

    assert endings(fail(scheduler, "r", at(1), fault=fault)) == [Outcome.ENGINE_ERROR]
    assert scheduler.summary().quarantined == 0


def test_endpoint_failure_is_reverted_when_the_request_is_blamed() -> None:
    scheduler = a_fleet(2)
    serve(scheduler, at(0), tenant="acme", count=2)
    first = where(scheduler.handle(arrived("r"), at(1)))
    commands_for(scheduler, at(1), failed("r", fault=Fault.RESPONSE))
    assert endpoint_summary(scheduler, first).suspected

    commands_for(scheduler, at(1), failed("r", 2, fault=Fault.RESPONSE))
    assert not endpoint_summary(scheduler, first).suspected


def test_endpoint_failure_cleared_by_a_success_is_not_reverted_again() -> None:
    scheduler = a_fleet(2)
    serve(scheduler, at(0), tenant="acme", count=2)
    commands_for(scheduler, at(1), arrived("r"), failed("r", fault=Fault.RESPONSE))
    serve(scheduler, at(1), tenant="acme", count=2)

    assert endings(commands_for(scheduler, at(1), failed("r", 2, fault=Fault.RESPONSE))) == [Outcome.QUARANTINED]
    assert not any(each.suspected for each in scheduler.summary().endpoints)


@pytest.mark.parametrize("fault", [Fault.RESPONSE, Fault.CONNECTION])
def test_consecutive_engine_crashes_do_not_quarantine_requests(fault: Fault) -> None:
    """Both engines served other requests within the last few seconds, but before they crashed."""
    scheduler = a_fleet(4, failures_max=3)
    serve(scheduler, at(0), tenant="bolt")
    names = [f"r{number}" for number in range(16)]
    held: dict[str, list[str]] = {}
    for name in names:
        held.setdefault(where(scheduler.handle(arrived(name), at(1))), []).append(name)
    first, second = sorted(held)[:2]
    moved: list[str] = []
    for name in held[first]:
        # One attempt fails with `fault`, and the other responses are truncated.
        out = commands_for(scheduler, at(2), failed(name, fault=Fault.RESPONSE if name != held[first][1] else fault))
        moved += [name for each in out if isinstance(each, Dispatch) and each.endpoint_id == second]
    assert moved

    out = commands_for(scheduler, at(3), *(failed(name, 2, fault=Fault.RESPONSE) for name in moved))
    out += commands_for(scheduler, at(3), *(failed(name, fault=Fault.RESPONSE) for name in held[second]))
    assert Outcome.QUARANTINED not in endings(out)
    assert scheduler.summary().quarantined == 0


def test_request_is_not_quarantined_if_others_failed_since_the_last_success() -> None:
    scheduler = a_fleet(2, failures_max=9)
    serve(scheduler, at(0), tenant="acme", count=2)
    commands_for(scheduler, at(1), arrived("r"), arrived("s"), failed("r", fault=Fault.RESPONSE))

    assert endings(commands_for(scheduler, at(1), failed("s", fault=Fault.CONNECTION))) == []
    assert endings(commands_for(scheduler, at(1), failed("r", 2, fault=Fault.RESPONSE))) == []


def test_truncated_stream_ends_as_engine_failure_and_its_body_is_quarantined() -> None:
    scheduler = a_fleet(2)
    serve(scheduler, at(0), tenant="acme", count=2)
    commands_for(scheduler, at(1), arrived("r1", fingerprint="f"), arrived("r2", fingerprint="f"))
    commands_for(scheduler, at(1), first_token("r1"), first_token("r2"), failed("r1", fault=Fault.RESPONSE))

    [over] = commands_for(scheduler, at(1), failed("r2", fault=Fault.RESPONSE))
    assert isinstance(over, End)
    assert over.outcome is Outcome.ENGINE_ERROR
    assert scheduler.summary().quarantined == 1


# Quarantine


def quarantined(scheduler: Scheduler, now: Instant, *, fingerprint: str = "f") -> None:
    serve(scheduler, now, tenant="acme")
    name = f"poison {fingerprint}"
    commands_for(scheduler, now, arrived(name, fingerprint=fingerprint), failed(name, fault=Fault.RESPONSE))
    assert endings(commands_for(scheduler, now, failed(name, 2, fault=Fault.RESPONSE))) == [Outcome.QUARANTINED]


def test_quarantined_body_is_rejected() -> None:
    scheduler = a_fleet()
    quarantined(scheduler, at(0))

    [over] = scheduler.handle(arrived("again", fingerprint="f"), at(10))
    assert isinstance(over, End)
    assert (over.outcome, over.attempts, over.retry_after_ns) == (Outcome.QUARANTINED, 0, (QUARANTINE_S - 10) * SECOND)
    assert over.reason == "the same request failed on two healthy endpoints and is quarantined for another 50 s"
    assert where(scheduler.handle(arrived("another", fingerprint="g"), at(10)))
    assert where(scheduler.handle(arrived("later", fingerprint="f"), at(QUARANTINE_S)))
    assert scheduler.summary().quarantined == 0


def test_earlier_request_with_a_quarantined_body_ends_without_blame_at_its_next_failure() -> None:
    scheduler = a_fleet()
    commands_for(scheduler, at(0), arrived("early", fingerprint="f"))
    quarantined(scheduler, at(1))

    assert endings(commands_for(scheduler, at(2), failed("early", fault=Fault.RESPONSE))) == [Outcome.QUARANTINED]
    assert not any(each.suspected for each in scheduler.summary().endpoints)


def test_completed_response_ends_the_quarantine() -> None:
    scheduler = a_fleet()
    commands_for(scheduler, at(0), arrived("early", fingerprint="f"))
    quarantined(scheduler, at(1))
    commands_for(scheduler, at(2), completed("early"))

    assert where(scheduler.handle(arrived("again", fingerprint="f"), at(3)))


def test_completed_request_is_no_longer_suspected() -> None:
    scheduler = a_fleet()
    serve(scheduler, at(0), tenant="acme")
    commands_for(
        scheduler, at(1), arrived("r1", fingerprint="f"), failed("r1", fault=Fault.RESPONSE), completed("r1", 2)
    )

    out = commands_for(scheduler, at(1), arrived("r2", fingerprint="f"), failed("r2", fault=Fault.RESPONSE))
    assert endings(out) == []


def test_number_of_quarantined_and_suspected_requests_is_bounded() -> None:
    scheduler = a_fleet(failures_max=10_000)
    scheduler._state.blame = FaultAttribution(requests_max=3)
    for number in range(4):
        quarantined(scheduler, at(0), fingerprint=f"f{number}")
    assert scheduler.summary().quarantined == 3
    assert where(scheduler.handle(arrived("the oldest", fingerprint="f0"), at(0)))
    assert endings(scheduler.handle(arrived("the next", fingerprint="f1"), at(0))) == [Outcome.QUARANTINED]

    commands_for(scheduler, at(1), failed("the oldest", fault=Fault.RESPONSE))
    for number in range(3):
        commands_for(scheduler, at(1), arrived(f"s{number}"), failed(f"s{number}", fault=Fault.RESPONSE))
    assert endings(commands_for(scheduler, at(1), failed("the oldest", 2, fault=Fault.RESPONSE))) == []


def test_new_scheduler_keeps_the_quarantine_for_its_remaining_time() -> None:
    scheduler = a_fleet()
    quarantined(scheduler, at(0))
    [told_of] = scheduler.counters(at(20)).quarantine
    assert (told_of.identity, told_of.left_ns) == ("f", (QUARANTINE_S - 20) * SECOND)
    assert scheduler.counters(at(QUARANTINE_S)).quarantine == ()

    successor = a_successor(scheduler.counters(at(20)), now=at(1_000), ago=5)
    [over] = successor.handle(arrived("again", fingerprint="f"), at(1_000))
    assert isinstance(over, End)
    assert (over.outcome, over.retry_after_ns) == (Outcome.QUARANTINED, (QUARANTINE_S - 25) * SECOND)


# Tenant and model


def test_failures_from_one_tenant_do_not_eject_an_endpoint_that_serves_others() -> None:
    scheduler = a_fleet(1, failures_max=3)
    serve(scheduler, at(0), tenant="bolt", count=1)

    out = [each for name in "abcdef" for each in fail(scheduler, name, at(1), fault=Fault.RESPONSE)]
    assert ejected(out) == []


def test_failures_from_one_tenant_count_if_the_endpoint_has_served_no_other_tenant_recently() -> None:
    scheduler = a_fleet(1, failures_max=3)
    serve(scheduler, at(0), tenant="bolt", count=1)
    assert ejected(fail(scheduler, "in time", at(SERVED_S), fault=Fault.RESPONSE)) == []

    assert ejected(fail(scheduler, "too late", at(SERVED_S + 1), fault=Fault.RESPONSE)) == ["e1"]


def test_streamed_tokens_count_as_service() -> None:
    scheduler = a_fleet(1, failures_max=3)
    commands_for(scheduler, at(0), arrived("long", "bolt"), first_token("long"))
    commands_for(scheduler, at(SERVED_S), progressed("long"))

    assert ejected(fail(scheduler, "r", at(2 * SERVED_S), fault=Fault.RESPONSE)) == []


def test_progress_report_without_tokens_does_not_count_as_service() -> None:
    scheduler = a_fleet(1, failures_max=3)
    commands_for(scheduler, at(0), arrived("long", "bolt"), first_token("long"))
    commands_for(scheduler, at(SERVED_S), AttemptsProgressed((AttemptProgress(RequestId("long"), 1, tokens=0),)))

    assert ejected(fail(scheduler, "r", at(2 * SERVED_S), fault=Fault.RESPONSE)) == ["e1"]


def test_consecutive_failures_from_two_tenants_count_against_the_endpoint() -> None:
    scheduler = a_fleet(1, failures_max=3)
    serve(scheduler, at(0), tenant="coil", count=1)
    commands_for(scheduler, at(1), arrived("a", "acme"), arrived("b", "bolt"))

    assert commands_for(scheduler, at(1), failed("a", fault=Fault.RESPONSE))
    assert not endpoint_summary(scheduler, "e1").suspected
    commands_for(scheduler, at(1), failed("b", fault=Fault.RESPONSE))
    assert endpoint_summary(scheduler, "e1").suspected
    assert ejected(commands_for(scheduler, at(1), failed("a", 2, fault=Fault.RESPONSE))) == []
    assert ejected(commands_for(scheduler, at(1), failed("b", 2, fault=Fault.RESPONSE))) == ["e1"]


def test_success_resets_consecutive_failures() -> None:
    scheduler = a_fleet(1, failures_max=1)
    serve(scheduler, at(0), tenant="coil", count=1)
    assert ejected(commands_for(scheduler, at(1), arrived("a", "acme"), failed("a", fault=Fault.RESPONSE))) == []
    serve(scheduler, at(1), tenant="coil", count=1)

    assert ejected(commands_for(scheduler, at(1), arrived("b", "bolt"), failed("b", fault=Fault.RESPONSE))) == []


def test_failures_for_one_model_do_not_eject_an_endpoint_that_serves_another() -> None:
    models = (a_model("m", "p"), a_model("n", "p"))
    policy = a_policy(pools=(a_pool("p"),), models=models, retry=GENEROUS)
    scheduler = a_fleet(1, policy=policy)
    serve(scheduler, at(0), tenant="acme", count=1, model="n")

    out = [each for name in "abc" for each in fail(scheduler, name, at(1), fault=Fault.UNAVAILABLE)]
    assert ejected(out) == []


@pytest.mark.parametrize("fault", [None, Fault.CONNECTION])
def test_refused_and_reset_connections_always_count_against_the_endpoint(fault: Fault | None) -> None:
    scheduler = a_fleet(1, failures_max=3)
    serve(scheduler, at(0), tenant="bolt", count=1)

    assert ejected(fail(scheduler, "r", at(0), fault=fault)) == ["e1"]


SILENT_S = 20
"""How long a silence lasts in these tests, in seconds."""


def streams(scheduler: Scheduler, now: Instant, *, tenant: str, count: int = 4) -> list[str]:
    """Starts `count` streams for a tenant, one on each endpoint."""
    names = [f"{tenant}-stream-{number}" for number in range(count)]
    assert len({where(scheduler.handle(arrived(name, tenant), now)) for name in names}) == count
    commands_for(scheduler, now, *(first_token(name) for name in names))
    return names


def silent_together(scheduler: Scheduler, names: list[str], now: Instant) -> list[Command]:
    return commands_for(scheduler, now, *(timed_out(name) for name in names))


@pytest.mark.parametrize("begins", [True, False])
def test_silent_streams_from_one_tenant_do_not_eject_an_endpoint_that_serves_others(begins: bool) -> None:
    once = a_policy(
        tenants=("acme", "bolt"),
        retry=RetryRules(attempts_max=1),
        health=HealthRules(consecutive_failures_max=3, stall_ns_max=600 * SECOND),
    )
    scheduler = a_fleet(policy=once)
    others = streams(scheduler, at(0), tenant="bolt")
    silent = [f"silent {number}" for number in range(24)]
    commands_for(scheduler, at(1), *(arrived(name, "acme") for name in silent))
    if begins:
        commands_for(scheduler, at(1), *(first_token(name) for name in silent))
    for second in range(2, SILENT_S):
        commands_for(scheduler, at(second), *(progressed(name) for name in others))

    out = silent_together(scheduler, silent, at(1 + SILENT_S))
    assert endings(out) == [Outcome.ENGINE_TIMEOUT] * 24
    assert ejected(out) == []
    assert not any(each.suspected for each in scheduler.summary().endpoints)


def test_silent_streams_for_one_model_do_not_eject_an_endpoint_that_serves_another() -> None:
    models = (a_model("m", "p"), a_model("n", "p"))
    scheduler = a_fleet(1, policy=a_policy(pools=(a_pool("p"),), models=models, retry=GENEROUS))
    commands_for(scheduler, at(0), *(arrived(name) for name in "abc"))
    serve(scheduler, at(SILENT_S - 1), tenant="acme", count=1, model="n")

    assert ejected(silent_together(scheduler, ["a", "b", "c"], at(SILENT_S))) == []


def test_first_silent_streams_eject_a_hanging_engine() -> None:
    """The engine served all tenants until it hung and none since, so the silence is not attributed to any tenant."""
    scheduler = a_fleet(1, failures_max=3)
    names = [*streams(scheduler, at(0), tenant="acme", count=1), *streams(scheduler, at(0), tenant="bolt", count=1)]
    names += streams(scheduler, at(0), tenant="coil", count=1)
    for second in range(1, 11):
        commands_for(scheduler, at(second), *(progressed(name) for name in names))

    assert ejected(commands_for(scheduler, at(10 + SILENT_S), *(timed_out(name) for name in names[:2]))) == []
    assert ejected(commands_for(scheduler, at(10 + SILENT_S), timed_out(names[2]))) == ["e1"]


def test_silent_streams_from_one_tenant_count_if_the_endpoint_served_others_only_earlier() -> None:
    scheduler = a_fleet(1, failures_max=3)
    serve(scheduler, at(0), tenant="bolt", count=1)
    commands_for(scheduler, at(0), *(arrived(name, "acme") for name in "abc"))

    out = silent_together(scheduler, ["a", "b", "c"], at(5))
    assert ejected(out) == ["e1"], "5 s is less than the time within which a failed response would be excused"


def test_service_in_the_first_half_of_a_silence_does_not_excuse_it() -> None:
    for served_s, expected in ((SILENT_S // 2, ["e1"]), (SILENT_S // 2 + 1, [])):
        scheduler = a_fleet(1, failures_max=1)
        commands_for(scheduler, at(0), arrived("r"))
        serve(scheduler, at(served_s), tenant="bolt", count=1)

        assert ejected(commands_for(scheduler, at(SILENT_S), timed_out("r"))) == expected


def test_request_is_quarantined_if_it_is_silent_on_two_endpoints_that_serve_others() -> None:
    scheduler = a_fleet(2)
    first = where(scheduler.handle(arrived("r", fingerprint="f"), at(0)))
    serve(scheduler, at(29), tenant="acme", count=2)
    second = where(commands_for(scheduler, at(30), timed_out("r")))
    assert first != second
    commands_for(scheduler, at(59), arrived("busy"))
    serve(scheduler, at(59), tenant="acme", count=2)

    [over] = commands_for(scheduler, at(60), timed_out("r", 2))
    assert isinstance(over, End)
    assert (over.outcome, over.retry_after_ns) == (Outcome.QUARANTINED, QUARANTINE_NS)
    assert over.reason == "attempt 2: the request failed on two endpoints that serve other requests: no token in time"
    assert not endpoint_summary(scheduler, first).suspected
    assert endings(scheduler.handle(arrived("again", fingerprint="f"), at(61))) == [Outcome.QUARANTINED]


def test_request_silent_on_a_hung_engine_is_not_quarantined_after_a_second_silence() -> None:
    scheduler = a_fleet(2, failures_max=9)
    commands_for(scheduler, at(0), arrived("r", fingerprint="f"))
    commands_for(scheduler, at(30), timed_out("r"))
    commands_for(scheduler, at(59), arrived("busy"))
    serve(scheduler, at(59), tenant="acme", count=2)

    assert Outcome.QUARANTINED not in endings(commands_for(scheduler, at(60), timed_out("r", 2)))
    assert scheduler.summary().quarantined == 0


def test_silent_request_with_a_quarantined_body_does_not_count_against_its_endpoint() -> None:
    scheduler = a_fleet()
    commands_for(scheduler, at(0), arrived("early", fingerprint="f"))
    quarantined(scheduler, at(1))

    assert endings(commands_for(scheduler, at(30), timed_out("early"))) == [Outcome.QUARANTINED]
    assert not any(each.suspected for each in scheduler.summary().endpoints)


def test_failure_counts_against_the_endpoint_if_the_request_succeeds_elsewhere() -> None:
    scheduler = a_fleet(2, failures_max=2)
    serve(scheduler, at(0), tenant="bolt", count=2)
    first = where(scheduler.handle(arrived("r1"), at(1)))
    commands_for(scheduler, at(1), failed("r1", fault=Fault.RESPONSE))
    assert not endpoint_summary(scheduler, first).suspected
    commands_for(scheduler, at(1), first_token("r1", 2))
    assert endpoint_summary(scheduler, first).suspected

    commands_for(scheduler, at(1), arrived("r2"), failed("r2", fault=Fault.RESPONSE))
    [out] = [each for each in commands_for(scheduler, at(1), first_token("r2", 2)) if isinstance(each, Eject)]
    assert (out.endpoint_id, out.reason) == (first, "a request that failed here succeeded on another endpoint")


def test_success_elsewhere_does_not_count_against_a_removed_or_ejected_endpoint() -> None:
    for meanwhile in ("leaves", "is ejected"):
        scheduler = a_fleet(2, failures_max=1)
        serve(scheduler, at(0), tenant="bolt", count=2)
        first = where(scheduler.handle(arrived("r"), at(1)))
        commands_for(scheduler, at(1), failed("r", fault=Fault.RESPONSE))
        if meanwhile == "leaves":
            commands_for(scheduler, at(1), leaving(first))
        else:
            commands_for(scheduler, at(1), arrived("x"), failed("x", fault=Fault.CONNECTION))

        assert ejected(commands_for(scheduler, at(1), first_token("r", 2))) == []


# Timeouts


def test_response_exceeding_its_timeout_is_not_retried_and_does_not_eject_its_endpoint() -> None:
    scheduler = a_fleet(2, failures_max=1)
    commands_for(scheduler, at(0), arrived("r", stream=False))

    [over] = commands_for(scheduler, at(5), timed_out("r", detail="not complete within 5 s", fault=Fault.TIME_LIMIT))
    assert isinstance(over, End)
    assert (over.outcome, over.attempts, over.reason) == (Outcome.ENGINE_TIMEOUT, 1, "not complete within 5 s")
    assert over.retry_after_ns == SECOND
    assert scheduler.summary().quarantined == 0


def test_stream_exceeding_its_timeout_does_not_eject_its_endpoint() -> None:
    scheduler = a_fleet(2, failures_max=1)
    commands_for(scheduler, at(0), arrived("r"), first_token("r"))

    [over] = commands_for(scheduler, at(5), timed_out("r", detail="not complete within 5 s", fault=Fault.TIME_LIMIT))
    assert isinstance(over, End)
    assert over.reason == "after the first token: not complete within 5 s"


def test_exceeded_timeout_counts_against_an_endpoint_with_stale_metrics() -> None:
    scheduler = a_fleet(1, failures_max=1)
    commands_for(
        scheduler, at(0), EndpointMetricsReported(EndpointId("e1"), running=0, waiting=0), arrived("r", stream=False)
    )
    commands_for(scheduler, at(60), TimerFired())
    assert endpoint_summary(scheduler, "e1").suspected

    assert ejected(commands_for(scheduler, at(60), timed_out("r", fault=Fault.TIME_LIMIT))) == ["e1"]


def test_deadline_takes_precedence_over_a_timeout() -> None:
    scheduler = a_fleet(2)
    commands_for(scheduler, at(0), arrived("r", stream=False, complete_within=5))

    assert endings(commands_for(scheduler, at(5), timed_out("r", fault=Fault.TIME_LIMIT))) == [
        Outcome.DEADLINE_EXCEEDED
    ]


# Gateway


def test_gateway_failures_do_not_eject_endpoints_and_end_the_request_after_its_last_attempt() -> None:
    scheduler = a_fleet(2, failures_max=1)
    serve(scheduler, at(0), tenant="acme", count=2)

    out = [each for number in range(9) for each in fail(scheduler, f"r{number}", at(1), fault=Fault.GATEWAY)]
    overs = [each for each in out if isinstance(each, End)]
    assert {(each.outcome, each.attempts, each.retry_after_ns) for each in overs} == {
        (Outcome.INTERNAL_ERROR, 3, SECOND)
    }
    assert overs[0].reason == "attempt 3 of 3: HTTP 500"
    assert ejected(out) == []


def test_gateway_tries_another_endpoint_if_it_cannot_send_to_one() -> None:
    scheduler = a_fleet(2)
    first = where(scheduler.handle(arrived("r"), at(0)))

    assert where(commands_for(scheduler, at(0), failed("r", fault=Fault.GATEWAY))) != first


def unreachable(scheduler: Scheduler, names: tuple[str, ...], requests: int, now: Instant) -> list[Command]:
    """Runs requests while the gateway cannot reach these endpoints. Returns all commands."""
    out: list[Command] = []
    for number in range(requests):
        name = f"r{number} at {now}"
        said, attempt = scheduler.handle(arrived(name), now), 1
        while not endings(said):
            lost = where(said) in names
            said = scheduler.handle(
                failed(name, attempt, fault=Fault.GATEWAY) if lost else completed(name, attempt), now
            )
            attempt += 1
            out += said
    return out


@pytest.mark.parametrize("names", [("e1",), ("e1", "e2")])
def test_few_unreachable_endpoints_are_ejected_without_failing_requests(
    names: tuple[str, ...],
) -> None:
    health, retry = HealthRules(consecutive_failures_max=3), RetryRules(attempts_max=3)
    scheduler = a_fleet(policy=a_policy(health=health, retry=retry))

    out = unreachable(scheduler, names, 60, at(0))
    assert endings(out) == [Outcome.COMPLETED] * 60
    assert sorted(ejected(out)) == list(names)


def test_unreachable_endpoint_fails_its_trial() -> None:
    scheduler = a_fleet(2, policy=a_policy(health=HealthRules(consecutive_failures_max=1), retry=GENEROUS))
    assert ejected(unreachable(scheduler, ("e1",), 4, at(0))) == ["e1"]

    commands_for(scheduler, at(60), TimerFired())
    assert endpoint_summary(scheduler, "e1").state is EndpointState.TRIAL
    assert ejected(unreachable(scheduler, ("e1",), 4, at(60))) == ["e1"]


def test_gateway_ejects_no_endpoint_if_it_cannot_reach_most_of_them() -> None:
    scheduler = a_fleet(failures_max=1)
    commands_for(scheduler, at(0), *(arrived(name) for name in "abc"))
    commands_for(scheduler, at(0), *(failed(name, fault=Fault.GATEWAY) for name in "abc"))

    assert ejected(commands_for(scheduler, at(1), *(first_token(name, 2) for name in "abc"))) == []


def test_number_of_remembered_unreachable_endpoints_is_bounded() -> None:
    scheduler = a_fleet(failures_max=1)
    scheduler._state.blame = FaultAttribution(requests_max=2)
    commands_for(scheduler, at(0), *(arrived(name) for name in "abc"))
    commands_for(scheduler, at(0), *(failed(name, fault=Fault.GATEWAY) for name in "abc"))

    assert len(ejected(commands_for(scheduler, at(1), first_token("a", 2)))) == 1


def test_single_member_without_resources_does_not_eject_an_endpoint() -> None:
    scheduler = a_fleet(2, failures_max=1)
    commands_for(
        scheduler, at(0), *(arrived(f"{member}{number}", gateway=member) for member in ("g1", "g2") for number in "ab")
    )
    commands_for(scheduler, at(0), *(completed(f"{member}{number}") for member in ("g1", "g2") for number in "ab"))
    first = where(scheduler.handle(arrived("r", gateway="g3"), at(1)))

    out = commands_for(scheduler, at(1), failed("r", fault=Fault.GATEWAY), first_token("r", 2))
    assert ejected(out) == []
    assert endpoint_summary(scheduler, first).unserved_members == ("g3",)


def test_stream_ends_with_internal_error_if_the_gateway_fails() -> None:
    scheduler = a_fleet(1, failures_max=1)
    commands_for(scheduler, at(0), arrived("r"), first_token("r"))

    [over] = commands_for(scheduler, at(1), failed("r", detail="no memory", fault=Fault.GATEWAY))
    assert isinstance(over, End)
    assert (over.outcome, over.reason) == (Outcome.INTERNAL_ERROR, "after the first token: no memory")


@pytest.mark.parametrize("fault", [Fault.GATEWAY, Fault.RESPONSE])
def test_passed_deadline_takes_precedence_over_other_outcomes(fault: Fault) -> None:
    scheduler = a_fleet(2)
    serve(scheduler, at(0), tenant="acme", count=2)
    commands_for(scheduler, at(0), arrived("r", complete_within=1), failed("r", fault=Fault.RESPONSE))

    assert endings(commands_for(scheduler, at(1), failed("r", 2, fault=fault))) == [Outcome.DEADLINE_EXCEEDED]


# Cell members


def served_through(scheduler: Scheduler, now: Instant, *members: str) -> None:
    for member in members:
        name = f"by {member} at {now}"
        commands_for(scheduler, now, arrived(name, gateway=member), completed(name))


def fails_through(scheduler: Scheduler, now: Instant, member: str, *, count: int = 1) -> list[Command]:
    """Makes `count` of this member's requests fail without a retry."""
    names = [f"by {member} at {now}, number {number}" for number in range(count)]
    commands_for(scheduler, now, *(arrived(name, gateway=member) for name in names))
    return commands_for(scheduler, now, *(failed(name, fault=Fault.CONNECTION) for name in names))


ONCE = a_policy(retry=RetryRules(attempts_max=1), health=HealthRules(consecutive_failures_max=2))


def test_endpoint_unreachable_from_a_single_member_is_reported_but_not_ejected() -> None:
    scheduler = a_fleet(1, policy=ONCE)
    served_through(scheduler, at(0), "g1", "g2", "g3")

    assert ejected(fails_through(scheduler, at(1), "g3", count=9)) == []
    assert endpoint_summary(scheduler, "e1").unserved_members == ("g3",)
    assert not endpoint_summary(scheduler, "e1").suspected

    served_through(scheduler, at(2), "g1")
    assert endpoint_summary(scheduler, "e1").unserved_members == ("g3",)
    served_through(scheduler, at(2), "g3")
    assert endpoint_summary(scheduler, "e1").unserved_members == ()


def test_endpoint_unreachable_from_most_members_is_ejected() -> None:
    scheduler = a_fleet(1, policy=ONCE)
    served_through(scheduler, at(0), "g1", "g2", "g3")

    assert ejected(fails_through(scheduler, at(1), "g1")) == []
    assert ejected(fails_through(scheduler, at(1), "g2")) == []
    assert endpoint_summary(scheduler, "e1").unserved_members == ()
    assert ejected(fails_through(scheduler, at(1), "g2")) == ["e1"]


def test_half_of_the_members_do_not_form_a_majority() -> None:
    scheduler = a_fleet(1, policy=ONCE)
    served_through(scheduler, at(0), "g1", "g2")

    assert ejected(fails_through(scheduler, at(1), "g2", count=9)) == []


def test_members_without_recent_attempts_are_not_counted() -> None:
    scheduler = a_fleet(1, policy=ONCE)
    served_through(scheduler, at(0), "g1", "g2")

    assert ejected(fails_through(scheduler, at(SERVED_S), "g2", count=2)) == []
    assert ejected(fails_through(scheduler, at(SERVED_S + 1), "g2", count=2)) == ["e1"]


def test_failures_reported_by_the_only_member_eject_an_endpoint() -> None:
    scheduler = a_fleet(1, policy=ONCE)
    served_through(scheduler, at(0), "g1")

    assert ejected(fails_through(scheduler, at(1), "g1", count=2)) == ["e1"]


def test_failure_attributed_to_a_member_leaves_the_failure_count_of_the_endpoint_unchanged() -> None:
    scheduler = a_fleet(2, failures_max=9)
    serve(scheduler, at(0), tenant="acme", count=2)
    for member in ("g1", "g2"):
        commands_for(scheduler, at(0), arrived(f"{member}a", gateway=member), arrived(f"{member}b", gateway=member))
        commands_for(scheduler, at(0), completed(f"{member}a"), completed(f"{member}b"))
    first = where(scheduler.handle(arrived("r", gateway="g3"), at(1)))
    commands_for(scheduler, at(1), failed("r", fault=Fault.RESPONSE))
    assert endpoint_summary(scheduler, first).unserved_members == ("g3",)
    scheduler._state.fleet.endpoints[EndpointId(first)].failures = 2

    assert endings(commands_for(scheduler, at(1), failed("r", 2, fault=Fault.RESPONSE))) == [Outcome.QUARANTINED]
    assert scheduler._state.fleet.endpoints[EndpointId(first)].failures == 2


def test_number_of_remembered_members_is_bounded() -> None:
    members = MembersServed(members_max=2)
    members.record_served("g1", at(0))
    assert not members.record_failure("g2", at(1), SERVED_NS_MAX)
    members.record_served("g1", at(2))
    members.record_served("g3", at(3))
    assert members.unserved == {}

    assert not members.record_failure("g3", at(4), SERVED_NS_MAX)
    assert members.record_failure("g1", at(4), SERVED_NS_MAX)


# Service log


def test_service_log_returns_when_another_key_was_last_served() -> None:
    log = LastServed()
    log.record("a", at(1))
    assert log.other_than("a") < at(0)
    assert log.other_than("b") == at(1)

    log.record("b", at(2))
    log.record("b", at(3))
    assert (log.other_than("a"), log.other_than("b"), log.other_than("c")) == (at(3), at(1), at(3))
    log.record("c", at(4))
    assert (log.other_than("b"), log.other_than("c")) == (at(4), at(3))
