"""Which origin does a failed attempt get, and what is the effect?"""

import pytest

from headgate.core.commands import Command, Dispatch, Eject, End
from headgate.core.events import AttemptProgress, EndpointMeasured, Progressed, TimerFired
from headgate.core.routing.blame import QUARANTINE_NS, SERVED_NS_MAX, SUSPECT_NS_MAX, Blame
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
    completed,
    endpoint_summary,
    failed,
    fell_silent,
    first_token,
    leaving,
    progressed,
    told,
)
from testing.reports import a_successor

SERVED_S, SUSPECT_S, QUARANTINE_S = (each // SECOND for each in (SERVED_NS_MAX, SUSPECT_NS_MAX, QUARANTINE_NS))
GENEROUS = RetryRules(credit_burst=1_000_000, pool_extra_min=1_000)


def a_fleet(count: int = 4, *, failures_max: int = 3, policy: Policy | None = None) -> Scheduler:
    """One pool of `count` endpoints, for three tenants."""
    health = HealthRules(failures_max=failures_max)
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
    """Every endpoint answers a request of this tenant."""
    names = [f"{tenant}-{now}-{number}" for number in range(count)]
    found = {where(scheduler.handle(arrived(name, tenant, model=model), now)) for name in names}
    assert len(found) == count
    told(scheduler, now, *(completed(name) for name in names))


def fail(scheduler: Scheduler, name: str, now: Instant, *, tenant: str = "acme", fault: Fault | None) -> list[Command]:
    """Makes a request fail wherever it is sent, until it ends. Returns all commands."""
    out = scheduler.handle(arrived(name, tenant), now)
    attempt = 1
    while not endings(out):
        out += scheduler.handle(failed(name, attempt, "it answered 500", fault=fault), now)
        attempt += 1
    return out


# The request


def test_request_that_fails_on_two_endpoints_that_serve_others_is_quarantined() -> None:
    scheduler = a_fleet()
    serve(scheduler, at(0), tenant="acme")

    out = fail(scheduler, "poison", at(1), fault=Fault.ANSWER)
    [over] = [each for each in out if isinstance(each, End)]
    assert (over.outcome, over.attempts) == (Outcome.QUARANTINED, 2)
    assert over.retry_after_ns == QUARANTINE_NS
    assert over.reason == "attempt 2: it failed on two endpoints that serve other requests: it answered 500"
    assert ejected(out) == []
    assert not any(each.suspected for each in scheduler.summary().endpoints)


def test_poison_requests_of_a_single_tenant_eject_no_endpoint() -> None:
    scheduler = a_fleet()
    out: list[Command] = []
    for number in range(40):
        serve(scheduler, at(number), tenant="acme")
        out += fail(scheduler, f"poison {number}", at(number), fault=Fault.ANSWER)

    assert ejected(out) == []


def test_request_is_retried_if_no_other_request_was_served() -> None:
    scheduler = a_fleet()

    out = fail(scheduler, "r", at(0), fault=Fault.ANSWER)
    assert endings(out) == [Outcome.ENGINE_FAILED]
    assert len([each for each in out if isinstance(each, Dispatch)]) == 3


@pytest.mark.parametrize(
    ("apart_s", "outcome"), [(SUSPECT_S, Outcome.QUARANTINED), (SUSPECT_S + 1, Outcome.ENGINE_FAILED)]
)
def test_two_failures_are_compared_only_within_the_suspicion_time(apart_s: int, outcome: Outcome) -> None:
    scheduler = a_fleet(2, policy=a_policy(retry=RetryRules(attempts_max=1), health=HealthRules(failures_max=9)))
    told(scheduler, at(0), arrived("r1", fingerprint="f"), arrived("r2", fingerprint="f"))
    told(scheduler, at(0), failed("r1", fault=Fault.ANSWER))
    told(scheduler, at(apart_s), arrived("busy"))
    serve(scheduler, at(apart_s), tenant="acme", count=2)

    assert endings(told(scheduler, at(apart_s), failed("r2", fault=Fault.ANSWER))) == [outcome]


@pytest.mark.parametrize("fault", [None, Fault.CONNECTION, Fault.UNAVAILABLE])
def test_failures_before_the_request_was_accepted_do_not_quarantine_it(fault: Fault | None) -> None:
    scheduler = a_fleet()
    serve(scheduler, at(0), tenant="acme")

    assert endings(fail(scheduler, "r", at(1), fault=fault)) == [Outcome.ENGINE_FAILED]
    assert scheduler.summary().quarantined == 0


def test_endpoint_failure_is_taken_back_when_the_request_is_blamed_for_it() -> None:
    scheduler = a_fleet(2)
    serve(scheduler, at(0), tenant="acme", count=2)
    first = where(scheduler.handle(arrived("r"), at(1)))
    told(scheduler, at(1), failed("r", fault=Fault.ANSWER))
    assert endpoint_summary(scheduler, first).suspected

    told(scheduler, at(1), failed("r", 2, fault=Fault.ANSWER))
    assert not endpoint_summary(scheduler, first).suspected


def test_endpoint_failure_that_a_success_cleared_is_not_taken_back_again() -> None:
    scheduler = a_fleet(2)
    serve(scheduler, at(0), tenant="acme", count=2)
    told(scheduler, at(1), arrived("r"), failed("r", fault=Fault.ANSWER))
    serve(scheduler, at(1), tenant="acme", count=2)

    assert endings(told(scheduler, at(1), failed("r", 2, fault=Fault.ANSWER))) == [Outcome.QUARANTINED]
    assert not any(each.suspected for each in scheduler.summary().endpoints)


@pytest.mark.parametrize("fault", [Fault.ANSWER, Fault.CONNECTION])
def test_engines_that_die_one_after_another_quarantine_none_of_their_requests(fault: Fault) -> None:
    """Both served other requests within the last seconds, but before they died."""
    scheduler = a_fleet(4, failures_max=3)
    serve(scheduler, at(0), tenant="bolt")
    names = [f"r{number}" for number in range(16)]
    held: dict[str, list[str]] = {}
    for name in names:
        held.setdefault(where(scheduler.handle(arrived(name), at(1))), []).append(name)
    first, second = sorted(held)[:2]
    moved: list[str] = []
    for name in held[first]:
        # One answer breaks off, the other connections are reset.
        out = told(scheduler, at(2), failed(name, fault=Fault.ANSWER if name != held[first][1] else fault))
        moved += [name for each in out if isinstance(each, Dispatch) and each.endpoint_id == second]
    assert moved

    out = told(scheduler, at(3), *(failed(name, 2, fault=Fault.ANSWER) for name in moved))
    out += told(scheduler, at(3), *(failed(name, fault=Fault.ANSWER) for name in held[second]))
    assert Outcome.QUARANTINED not in endings(out)
    assert scheduler.summary().quarantined == 0


def test_request_is_not_quarantined_if_others_failed_since_the_last_success() -> None:
    scheduler = a_fleet(2, failures_max=9)
    serve(scheduler, at(0), tenant="acme", count=2)
    told(scheduler, at(1), arrived("r"), arrived("s"), failed("r", fault=Fault.ANSWER))

    assert endings(told(scheduler, at(1), failed("s", fault=Fault.CONNECTION))) == []
    assert endings(told(scheduler, at(1), failed("r", 2, fault=Fault.ANSWER))) == []


def test_broken_stream_ends_with_engine_failed_and_its_body_is_quarantined() -> None:
    scheduler = a_fleet(2)
    serve(scheduler, at(0), tenant="acme", count=2)
    told(scheduler, at(1), arrived("r1", fingerprint="f"), arrived("r2", fingerprint="f"))
    told(scheduler, at(1), first_token("r1"), first_token("r2"), failed("r1", fault=Fault.ANSWER))

    [over] = told(scheduler, at(1), failed("r2", fault=Fault.ANSWER))
    assert isinstance(over, End)
    assert over.outcome is Outcome.ENGINE_FAILED
    assert scheduler.summary().quarantined == 1


# Quarantine


def quarantined(scheduler: Scheduler, now: Instant, *, fingerprint: str = "f") -> None:
    serve(scheduler, now, tenant="acme")
    name = f"poison {fingerprint}"
    told(scheduler, now, arrived(name, fingerprint=fingerprint), failed(name, fault=Fault.ANSWER))
    assert endings(told(scheduler, now, failed(name, 2, fault=Fault.ANSWER))) == [Outcome.QUARANTINED]


def test_same_body_is_rejected_while_it_is_quarantined() -> None:
    scheduler = a_fleet()
    quarantined(scheduler, at(0))

    [over] = scheduler.handle(arrived("again", fingerprint="f"), at(10))
    assert isinstance(over, End)
    assert (over.outcome, over.attempts, over.retry_after_ns) == (Outcome.QUARANTINED, 0, (QUARANTINE_S - 10) * SECOND)
    assert over.reason == "the same request failed on two endpoints that serve others; it is not sent again for 50 s"
    assert where(scheduler.handle(arrived("another", fingerprint="g"), at(10)))
    assert where(scheduler.handle(arrived("later", fingerprint="f"), at(QUARANTINE_S)))
    assert scheduler.summary().quarantined == 0


def test_earlier_request_with_a_quarantined_body_ends_at_its_next_failure_without_blame() -> None:
    scheduler = a_fleet()
    told(scheduler, at(0), arrived("early", fingerprint="f"))
    quarantined(scheduler, at(1))

    assert endings(told(scheduler, at(2), failed("early", fault=Fault.ANSWER))) == [Outcome.QUARANTINED]
    assert not any(each.suspected for each in scheduler.summary().endpoints)


def test_an_answer_ends_the_quarantine() -> None:
    scheduler = a_fleet()
    told(scheduler, at(0), arrived("early", fingerprint="f"))
    quarantined(scheduler, at(1))
    told(scheduler, at(2), completed("early"))

    assert where(scheduler.handle(arrived("again", fingerprint="f"), at(3)))


def test_answered_request_is_no_longer_suspected() -> None:
    scheduler = a_fleet()
    serve(scheduler, at(0), tenant="acme")
    told(scheduler, at(1), arrived("r1", fingerprint="f"), failed("r1", fault=Fault.ANSWER), completed("r1", 2))

    out = told(scheduler, at(1), arrived("r2", fingerprint="f"), failed("r2", fault=Fault.ANSWER))
    assert endings(out) == []


def test_the_number_of_quarantined_and_suspected_requests_is_bounded() -> None:
    scheduler = a_fleet(failures_max=10_000)
    scheduler._state.blame = Blame(requests_max=3)
    for number in range(4):
        quarantined(scheduler, at(0), fingerprint=f"f{number}")
    assert scheduler.summary().quarantined == 3
    assert where(scheduler.handle(arrived("the oldest", fingerprint="f0"), at(0)))
    assert endings(scheduler.handle(arrived("the next", fingerprint="f1"), at(0))) == [Outcome.QUARANTINED]

    told(scheduler, at(1), failed("the oldest", fault=Fault.ANSWER))
    for number in range(3):
        told(scheduler, at(1), arrived(f"s{number}"), failed(f"s{number}", fault=Fault.ANSWER))
    assert endings(told(scheduler, at(1), failed("the oldest", 2, fault=Fault.ANSWER))) == []


def test_successor_keeps_the_quarantine_for_its_remaining_time() -> None:
    scheduler = a_fleet()
    quarantined(scheduler, at(0))
    [told_of] = scheduler.counters(at(20)).quarantine
    assert (told_of.identity, told_of.left_ns) == ("f", (QUARANTINE_S - 20) * SECOND)
    assert scheduler.counters(at(QUARANTINE_S)).quarantine == ()

    successor = a_successor(scheduler.counters(at(20)), now=at(1_000), ago=5)
    [over] = successor.handle(arrived("again", fingerprint="f"), at(1_000))
    assert isinstance(over, End)
    assert (over.outcome, over.retry_after_ns) == (Outcome.QUARANTINED, (QUARANTINE_S - 25) * SECOND)


# The tenant, the model


def test_failures_of_one_tenant_do_not_eject_an_endpoint_that_serves_others() -> None:
    scheduler = a_fleet(1, failures_max=3)
    serve(scheduler, at(0), tenant="bolt", count=1)

    out = [each for name in "abcdef" for each in fail(scheduler, name, at(1), fault=Fault.ANSWER)]
    assert ejected(out) == []


def test_failures_of_one_tenant_count_if_the_endpoint_has_served_no_other_tenant_recently() -> None:
    scheduler = a_fleet(1, failures_max=3)
    serve(scheduler, at(0), tenant="bolt", count=1)
    assert ejected(fail(scheduler, "in time", at(SERVED_S), fault=Fault.ANSWER)) == []

    assert ejected(fail(scheduler, "too late", at(SERVED_S + 1), fault=Fault.ANSWER)) == ["e1"]


def test_streamed_tokens_count_as_service() -> None:
    scheduler = a_fleet(1, failures_max=3)
    told(scheduler, at(0), arrived("long", "bolt"), first_token("long"))
    told(scheduler, at(SERVED_S), progressed("long"))

    assert ejected(fail(scheduler, "r", at(2 * SERVED_S), fault=Fault.ANSWER)) == []


def test_report_without_tokens_does_not_count_as_service() -> None:
    scheduler = a_fleet(1, failures_max=3)
    told(scheduler, at(0), arrived("long", "bolt"), first_token("long"))
    told(scheduler, at(SERVED_S), Progressed((AttemptProgress(RequestId("long"), 1, tokens=0),)))

    assert ejected(fail(scheduler, "r", at(2 * SERVED_S), fault=Fault.ANSWER)) == ["e1"]


def test_consecutive_failures_of_two_tenants_count_against_the_endpoint() -> None:
    scheduler = a_fleet(1, failures_max=3)
    serve(scheduler, at(0), tenant="coil", count=1)
    told(scheduler, at(1), arrived("a", "acme"), arrived("b", "bolt"))

    assert told(scheduler, at(1), failed("a", fault=Fault.ANSWER))
    assert not endpoint_summary(scheduler, "e1").suspected
    told(scheduler, at(1), failed("b", fault=Fault.ANSWER))
    assert endpoint_summary(scheduler, "e1").suspected
    assert ejected(told(scheduler, at(1), failed("a", 2, fault=Fault.ANSWER))) == []
    assert ejected(told(scheduler, at(1), failed("b", 2, fault=Fault.ANSWER))) == ["e1"]


def test_success_resets_the_consecutive_failures() -> None:
    scheduler = a_fleet(1, failures_max=1)
    serve(scheduler, at(0), tenant="coil", count=1)
    assert ejected(told(scheduler, at(1), arrived("a", "acme"), failed("a", fault=Fault.ANSWER))) == []
    serve(scheduler, at(1), tenant="coil", count=1)

    assert ejected(told(scheduler, at(1), arrived("b", "bolt"), failed("b", fault=Fault.ANSWER))) == []


def test_failures_of_one_model_do_not_eject_an_endpoint_that_serves_another() -> None:
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
"""Duration of a silence in these tests."""


def streams(scheduler: Scheduler, now: Instant, *, tenant: str, count: int = 4) -> list[str]:
    """Starts `count` streams of a tenant, one at each endpoint."""
    names = [f"{tenant}-stream-{number}" for number in range(count)]
    assert len({where(scheduler.handle(arrived(name, tenant), now)) for name in names}) == count
    told(scheduler, now, *(first_token(name) for name in names))
    return names


def silent_together(scheduler: Scheduler, names: list[str], now: Instant) -> list[Command]:
    return told(scheduler, now, *(fell_silent(name) for name in names))


@pytest.mark.parametrize("begins", [True, False])
def test_silent_streams_of_one_tenant_eject_no_endpoint_that_serves_others_meanwhile(begins: bool) -> None:
    once = a_policy(
        tenants=("acme", "bolt"),
        retry=RetryRules(attempts_max=1),
        health=HealthRules(failures_max=3, stall_ns_max=600 * SECOND),
    )
    scheduler = a_fleet(policy=once)
    others = streams(scheduler, at(0), tenant="bolt")
    silent = [f"silent {number}" for number in range(24)]
    told(scheduler, at(1), *(arrived(name, "acme") for name in silent))
    if begins:
        told(scheduler, at(1), *(first_token(name) for name in silent))
    for second in range(2, SILENT_S):
        told(scheduler, at(second), *(progressed(name) for name in others))

    out = silent_together(scheduler, silent, at(1 + SILENT_S))
    assert endings(out) == [Outcome.ENGINE_SILENT] * 24
    assert ejected(out) == []
    assert not any(each.suspected for each in scheduler.summary().endpoints)


def test_silent_streams_for_one_model_eject_no_endpoint_that_serves_another_meanwhile() -> None:
    models = (a_model("m", "p"), a_model("n", "p"))
    scheduler = a_fleet(1, policy=a_policy(pools=(a_pool("p"),), models=models, retry=GENEROUS))
    told(scheduler, at(0), *(arrived(name) for name in "abc"))
    serve(scheduler, at(SILENT_S - 1), tenant="acme", count=1, model="n")

    assert ejected(silent_together(scheduler, ["a", "b", "c"], at(SILENT_S))) == []


def test_an_engine_that_hangs_is_ejected_by_its_first_silent_streams() -> None:
    """The engine served all tenants until it hung and none since, so no silence is attributed to a tenant."""
    scheduler = a_fleet(1, failures_max=3)
    names = [*streams(scheduler, at(0), tenant="acme", count=1), *streams(scheduler, at(0), tenant="bolt", count=1)]
    names += streams(scheduler, at(0), tenant="coil", count=1)
    for second in range(1, 11):
        told(scheduler, at(second), *(progressed(name) for name in names))

    assert ejected(told(scheduler, at(10 + SILENT_S), *(fell_silent(name) for name in names[:2]))) == []
    assert ejected(told(scheduler, at(10 + SILENT_S), fell_silent(names[2]))) == ["e1"]


def test_silent_streams_of_one_tenant_count_against_an_endpoint_that_served_others_only_before() -> None:
    scheduler = a_fleet(1, failures_max=3)
    serve(scheduler, at(0), tenant="bolt", count=1)
    told(scheduler, at(0), *(arrived(name, "acme") for name in "abc"))

    out = silent_together(scheduler, ["a", "b", "c"], at(5))
    assert ejected(out) == ["e1"], "five seconds are less than those within which a failed answer is excused"


def test_service_in_the_first_half_of_a_silence_does_not_excuse_it() -> None:
    for served_s, expected in ((SILENT_S // 2, ["e1"]), (SILENT_S // 2 + 1, [])):
        scheduler = a_fleet(1, failures_max=1)
        told(scheduler, at(0), arrived("r"))
        serve(scheduler, at(served_s), tenant="bolt", count=1)

        assert ejected(told(scheduler, at(SILENT_S), fell_silent("r"))) == expected


def test_a_request_that_is_silent_on_two_endpoints_that_serve_others_meanwhile_is_quarantined() -> None:
    scheduler = a_fleet(2)
    first = where(scheduler.handle(arrived("r", fingerprint="f"), at(0)))
    serve(scheduler, at(29), tenant="acme", count=2)
    second = where(told(scheduler, at(30), fell_silent("r")))
    assert first != second
    told(scheduler, at(59), arrived("busy"))
    serve(scheduler, at(59), tenant="acme", count=2)

    [over] = told(scheduler, at(60), fell_silent("r", 2))
    assert isinstance(over, End)
    assert (over.outcome, over.retry_after_ns) == (Outcome.QUARANTINED, QUARANTINE_NS)
    assert over.reason == "attempt 2: it failed on two endpoints that serve other requests: no token in time"
    assert not endpoint_summary(scheduler, first).suspected
    assert endings(scheduler.handle(arrived("again", fingerprint="f"), at(61))) == [Outcome.QUARANTINED]


def test_request_that_was_silent_on_a_hung_engine_is_not_quarantined_for_a_second_silence() -> None:
    scheduler = a_fleet(2, failures_max=9)
    told(scheduler, at(0), arrived("r", fingerprint="f"))
    told(scheduler, at(30), fell_silent("r"))
    told(scheduler, at(59), arrived("busy"))
    serve(scheduler, at(59), tenant="acme", count=2)

    assert Outcome.QUARANTINED not in endings(told(scheduler, at(60), fell_silent("r", 2)))
    assert scheduler.summary().quarantined == 0


def test_silent_request_with_a_quarantined_body_blames_no_endpoint() -> None:
    scheduler = a_fleet()
    told(scheduler, at(0), arrived("early", fingerprint="f"))
    quarantined(scheduler, at(1))

    assert endings(told(scheduler, at(30), fell_silent("early"))) == [Outcome.QUARANTINED]
    assert not any(each.suspected for each in scheduler.summary().endpoints)


def test_a_request_that_is_answered_elsewhere_blames_the_endpoint_where_it_failed() -> None:
    scheduler = a_fleet(2, failures_max=2)
    serve(scheduler, at(0), tenant="bolt", count=2)
    first = where(scheduler.handle(arrived("r1"), at(1)))
    told(scheduler, at(1), failed("r1", fault=Fault.ANSWER))
    assert not endpoint_summary(scheduler, first).suspected
    told(scheduler, at(1), first_token("r1", 2))
    assert endpoint_summary(scheduler, first).suspected

    told(scheduler, at(1), arrived("r2"), failed("r2", fault=Fault.ANSWER))
    [out] = [each for each in told(scheduler, at(1), first_token("r2", 2)) if isinstance(each, Eject)]
    assert (out.endpoint_id, out.reason) == (first, "a request that failed there was answered elsewhere")


def test_an_endpoint_that_is_gone_or_ejected_is_not_blamed_afterwards() -> None:
    for meanwhile in ("leaves", "is ejected"):
        scheduler = a_fleet(2, failures_max=1)
        serve(scheduler, at(0), tenant="bolt", count=2)
        first = where(scheduler.handle(arrived("r"), at(1)))
        told(scheduler, at(1), failed("r", fault=Fault.ANSWER))
        if meanwhile == "leaves":
            told(scheduler, at(1), leaving(first))
        else:
            told(scheduler, at(1), arrived("x"), failed("x", fault=Fault.CONNECTION))

        assert ejected(told(scheduler, at(1), first_token("r", 2))) == []


# Limits


def test_response_that_exceeds_its_time_limit_is_not_retried_and_ejects_no_endpoint() -> None:
    scheduler = a_fleet(2, failures_max=1)
    told(scheduler, at(0), arrived("r", stream=False))

    [over] = told(scheduler, at(5), fell_silent("r", detail="not complete within 5 s", fault=Fault.LIMIT))
    assert isinstance(over, End)
    assert (over.outcome, over.attempts, over.reason) == (Outcome.ENGINE_SILENT, 1, "not complete within 5 s")
    assert over.retry_after_ns == SECOND
    assert scheduler.summary().quarantined == 0


def test_stream_that_exceeds_its_time_limit_ejects_no_endpoint() -> None:
    scheduler = a_fleet(2, failures_max=1)
    told(scheduler, at(0), arrived("r"), first_token("r"))

    [over] = told(scheduler, at(5), fell_silent("r", detail="not complete within 5 s", fault=Fault.LIMIT))
    assert isinstance(over, End)
    assert over.reason == "after the first token: not complete within 5 s"


def test_exceeded_time_limit_counts_against_an_endpoint_with_stale_metrics() -> None:
    scheduler = a_fleet(1, failures_max=1)
    told(scheduler, at(0), EndpointMeasured(EndpointId("e1"), running=0, waiting=0), arrived("r", stream=False))
    told(scheduler, at(60), TimerFired())
    assert endpoint_summary(scheduler, "e1").suspected

    assert ejected(told(scheduler, at(60), fell_silent("r", fault=Fault.LIMIT))) == ["e1"]


def test_deadline_takes_precedence_over_a_time_limit() -> None:
    scheduler = a_fleet(2)
    told(scheduler, at(0), arrived("r", stream=False, complete_within=5))

    assert endings(told(scheduler, at(5), fell_silent("r", fault=Fault.LIMIT))) == [Outcome.TOO_LATE]


# The gateway


def test_gateway_failures_eject_no_endpoint_and_end_the_request_after_its_last_attempt() -> None:
    scheduler = a_fleet(2, failures_max=1)
    serve(scheduler, at(0), tenant="acme", count=2)

    out = [each for number in range(9) for each in fail(scheduler, f"r{number}", at(1), fault=Fault.GATEWAY)]
    overs = [each for each in out if isinstance(each, End)]
    assert {(each.outcome, each.attempts, each.retry_after_ns) for each in overs} == {
        (Outcome.GATEWAY_FAILED, 3, SECOND)
    }
    assert overs[0].reason == "attempt 3 of 3: it answered 500"
    assert ejected(out) == []


def test_gateway_that_cannot_send_to_one_endpoint_tries_another() -> None:
    scheduler = a_fleet(2)
    first = where(scheduler.handle(arrived("r"), at(0)))

    assert where(told(scheduler, at(0), failed("r", fault=Fault.GATEWAY))) != first


def unreachable(scheduler: Scheduler, names: tuple[str, ...], requests: int, now: Instant) -> list[Command]:
    """The gateway cannot reach these endpoints; the others answer at once. Returns all commands."""
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
def test_few_endpoints_that_the_gateway_cannot_reach_are_ejected_and_absorb_no_traffic(
    names: tuple[str, ...],
) -> None:
    health, retry = HealthRules(failures_max=3), RetryRules(attempts_max=3)
    scheduler = a_fleet(policy=a_policy(health=health, retry=retry))

    out = unreachable(scheduler, names, 60, at(0))
    assert endings(out) == [Outcome.COMPLETED] * 60
    assert sorted(ejected(out)) == list(names)


def test_endpoint_that_the_gateway_cannot_reach_fails_its_trial() -> None:
    scheduler = a_fleet(2, policy=a_policy(health=HealthRules(failures_max=1), retry=GENEROUS))
    assert ejected(unreachable(scheduler, ("e1",), 4, at(0))) == ["e1"]

    told(scheduler, at(60), TimerFired())
    assert endpoint_summary(scheduler, "e1").state is EndpointState.TRIAL
    assert ejected(unreachable(scheduler, ("e1",), 4, at(60))) == ["e1"]


def test_gateway_that_cannot_reach_most_endpoints_ejects_none() -> None:
    scheduler = a_fleet(failures_max=1)
    told(scheduler, at(0), *(arrived(name) for name in "abc"))
    told(scheduler, at(0), *(failed(name, fault=Fault.GATEWAY) for name in "abc"))

    assert ejected(told(scheduler, at(1), *(first_token(name, 2) for name in "abc"))) == []


def test_number_of_remembered_unreachable_endpoints_is_bounded() -> None:
    scheduler = a_fleet(failures_max=1)
    scheduler._state.blame = Blame(requests_max=2)
    told(scheduler, at(0), *(arrived(name) for name in "abc"))
    told(scheduler, at(0), *(failed(name, fault=Fault.GATEWAY) for name in "abc"))

    assert len(ejected(told(scheduler, at(1), first_token("a", 2)))) == 1


def test_member_that_alone_lacks_resources_to_reach_an_endpoint_does_not_eject_it() -> None:
    scheduler = a_fleet(2, failures_max=1)
    told(
        scheduler, at(0), *(arrived(f"{member}{number}", gateway=member) for member in ("g1", "g2") for number in "ab")
    )
    told(scheduler, at(0), *(completed(f"{member}{number}") for member in ("g1", "g2") for number in "ab"))
    first = where(scheduler.handle(arrived("r", gateway="g3"), at(1)))

    out = told(scheduler, at(1), failed("r", fault=Fault.GATEWAY), first_token("r", 2))
    assert ejected(out) == []
    assert endpoint_summary(scheduler, first).unserved_members == ("g3",)


def test_gateway_failure_in_mid_stream_ends_with_gateway_failed() -> None:
    scheduler = a_fleet(1, failures_max=1)
    told(scheduler, at(0), arrived("r"), first_token("r"))

    [over] = told(scheduler, at(1), failed("r", detail="no memory", fault=Fault.GATEWAY))
    assert isinstance(over, End)
    assert (over.outcome, over.reason) == (Outcome.GATEWAY_FAILED, "after the first token: no memory")


@pytest.mark.parametrize("fault", [Fault.GATEWAY, Fault.ANSWER])
def test_expired_deadline_takes_precedence_over_other_outcomes(fault: Fault) -> None:
    scheduler = a_fleet(2)
    serve(scheduler, at(0), tenant="acme", count=2)
    told(scheduler, at(0), arrived("r", complete_within=1), failed("r", fault=Fault.ANSWER))

    assert endings(told(scheduler, at(1), failed("r", 2, fault=fault))) == [Outcome.TOO_LATE]


# A member of a cell


def served_through(scheduler: Scheduler, now: Instant, *members: str) -> None:
    for member in members:
        name = f"by {member} at {now}"
        told(scheduler, now, arrived(name, gateway=member), completed(name))


def fails_through(scheduler: Scheduler, now: Instant, member: str, *, count: int = 1) -> list[Command]:
    """`count` requests of this member fail and are not retried."""
    names = [f"by {member} at {now}, number {number}" for number in range(count)]
    told(scheduler, now, *(arrived(name, gateway=member) for name in names))
    return told(scheduler, now, *(failed(name, fault=Fault.CONNECTION) for name in names))


ONCE = a_policy(retry=RetryRules(attempts_max=1), health=HealthRules(failures_max=2))


def test_member_that_alone_cannot_reach_an_endpoint_is_shown_and_does_not_eject_it() -> None:
    scheduler = a_fleet(1, policy=ONCE)
    served_through(scheduler, at(0), "g1", "g2", "g3")

    assert ejected(fails_through(scheduler, at(1), "g3", count=9)) == []
    assert endpoint_summary(scheduler, "e1").unserved_members == ("g3",)
    assert not endpoint_summary(scheduler, "e1").suspected

    served_through(scheduler, at(2), "g1")
    assert endpoint_summary(scheduler, "e1").unserved_members == ("g3",)
    served_through(scheduler, at(2), "g3")
    assert endpoint_summary(scheduler, "e1").unserved_members == ()


def test_an_endpoint_that_most_members_cannot_reach_is_ejected() -> None:
    scheduler = a_fleet(1, policy=ONCE)
    served_through(scheduler, at(0), "g1", "g2", "g3")

    assert ejected(fails_through(scheduler, at(1), "g1")) == []
    assert ejected(fails_through(scheduler, at(1), "g2")) == []
    assert endpoint_summary(scheduler, "e1").unserved_members == ()
    assert ejected(fails_through(scheduler, at(1), "g2")) == ["e1"]


def test_half_of_the_members_are_not_a_majority() -> None:
    scheduler = a_fleet(1, policy=ONCE)
    served_through(scheduler, at(0), "g1", "g2")

    assert ejected(fails_through(scheduler, at(1), "g2", count=9)) == []


def test_members_without_recent_attempts_are_not_counted() -> None:
    scheduler = a_fleet(1, policy=ONCE)
    served_through(scheduler, at(0), "g1", "g2")

    assert ejected(fails_through(scheduler, at(SERVED_S), "g2", count=2)) == []
    assert ejected(fails_through(scheduler, at(SERVED_S + 1), "g2", count=2)) == ["e1"]


def test_failures_of_the_only_member_eject_an_endpoint() -> None:
    scheduler = a_fleet(1, policy=ONCE)
    served_through(scheduler, at(0), "g1")

    assert ejected(fails_through(scheduler, at(1), "g1", count=2)) == ["e1"]


def test_failure_attributed_to_a_member_is_not_taken_back_from_the_endpoint() -> None:
    scheduler = a_fleet(2, failures_max=9)
    serve(scheduler, at(0), tenant="acme", count=2)
    for member in ("g1", "g2"):
        told(scheduler, at(0), arrived(f"{member}a", gateway=member), arrived(f"{member}b", gateway=member))
        told(scheduler, at(0), completed(f"{member}a"), completed(f"{member}b"))
    first = where(scheduler.handle(arrived("r", gateway="g3"), at(1)))
    told(scheduler, at(1), failed("r", fault=Fault.ANSWER))
    assert endpoint_summary(scheduler, first).unserved_members == ("g3",)
    scheduler._state.fleet.endpoints[EndpointId(first)].failures = 2

    assert endings(told(scheduler, at(1), failed("r", 2, fault=Fault.ANSWER))) == [Outcome.QUARANTINED]
    assert scheduler._state.fleet.endpoints[EndpointId(first)].failures == 2


def test_the_number_of_members_remembered_is_bounded() -> None:
    members = MembersServed(members_max=2)
    members.served("g1", at(0))
    assert not members.failed("g2", at(1), SERVED_NS_MAX)
    members.served("g1", at(2))
    members.served("g3", at(3))
    assert members.unserved == {}

    assert not members.failed("g3", at(4), SERVED_NS_MAX)
    assert members.failed("g1", at(4), SERVED_NS_MAX)


# Service log


def test_service_log_knows_when_another_was_last_served() -> None:
    log = LastServed()
    log.note("a", at(1))
    assert log.other_than("a") < at(0)
    assert log.other_than("b") == at(1)

    log.note("b", at(2))
    log.note("b", at(3))
    assert (log.other_than("a"), log.other_than("b"), log.other_than("c")) == (at(3), at(1), at(3))
    log.note("c", at(4))
    assert (log.other_than("b"), log.other_than("c")) == (at(4), at(3))
