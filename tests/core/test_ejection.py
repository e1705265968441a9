"""When is an endpoint left alone, and how does it come back?"""

import pytest

from headgate.core.commands import Command, Dispatch, Eject
from headgate.core.events import Event, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import EndpointState, EndpointTrouble
from headgate.model.fault import Fault
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules, Policy
from headgate.model.units import SECOND, Instant
from testing.builders import (
    a_policy,
    a_scheduler,
    abort,
    aborted,
    an_endpoint,
    arrived,
    at,
    client_left,
    completed,
    dispatch,
    eject,
    end,
    endpoint_summary,
    failed,
    fell_silent,
    first_token,
    joined,
    lasting,
    leaving,
    probed,
    progressed,
    readied,
    readmit,
    refused,
    told,
    unreadied,
)

NO_LIFE = "its endpoint shows no sign of life"


def state_of(scheduler: Scheduler, name: str = "e1") -> EndpointState:
    return endpoint_summary(scheduler, name).state


def fails_once(scheduler: Scheduler, name: str, now: Instant) -> list[Command]:
    """What is said to a failure at the endpoint, of a request whose client has left so that it is not tried again."""
    [sent] = scheduler.handle(arrived(name), now)
    assert isinstance(sent, Dispatch)
    told(scheduler, now, client_left(name))
    return scheduler.handle(failed(name), now)


def beside_another(policy: Policy) -> Scheduler:
    """An endpoint whose pool has another one that takes work, but has no place."""
    return a_scheduler(an_endpoint("e1"), an_endpoint("full", places=0), policy=policy)


def seconds_out(commands: list[Command], now: Instant) -> int:
    [command] = commands
    assert isinstance(command, Eject)
    return (command.until - now) // SECOND


# Failures in a row


def test_failures_in_a_row_eject_an_endpoint() -> None:
    scheduler = a_scheduler()

    assert fails_once(scheduler, "a", at(0)) == []
    assert fails_once(scheduler, "b", at(1)) == []
    assert fails_once(scheduler, "c", at(2)) == [eject("e1", until=at(12), reason="connection refused")]
    assert state_of(scheduler) is EndpointState.EJECTED
    assert scheduler.next_wakeup() == at(12)


@pytest.mark.parametrize("success", [completed("s"), first_token("s")])
def test_a_success_in_between_makes_failures_start_anew(success: Event) -> None:
    scheduler = a_scheduler()
    fails_once(scheduler, "a", at(0))
    fails_once(scheduler, "b", at(0))
    told(scheduler, at(0), arrived("s"), success, aborted("s"))

    assert fails_once(scheduler, "c", at(1)) == []
    assert fails_once(scheduler, "d", at(1)) == []
    assert state_of(scheduler) is EndpointState.READY


def test_an_aborted_attempt_is_neither_success_nor_failure() -> None:
    scheduler = a_scheduler()
    fails_once(scheduler, "a", at(0))
    fails_once(scheduler, "b", at(0))
    told(scheduler, at(0), arrived("x"), client_left("x"), aborted("x"))

    assert fails_once(scheduler, "c", at(1)) == [eject("e1", until=at(11), reason="connection refused")]


def test_a_refused_request_is_neither_success_nor_failure() -> None:
    """An engine that cannot generate may still reject invalid requests; that must not keep it in service."""
    scheduler = a_scheduler()
    fails_once(scheduler, "a", at(0))
    fails_once(scheduler, "b", at(0))
    told(scheduler, at(0), arrived("x"), refused("x"))

    assert fails_once(scheduler, "c", at(1)) == [eject("e1", until=at(11), reason="connection refused")]


def test_a_refused_request_does_not_end_a_trial() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)), places=3)
    fails_once(scheduler, "a", at(0))
    told(scheduler, at(10), arrived("b"), arrived("c"), arrived("d"))
    commands = scheduler.handle(refused("b"), at(11))

    assert [each.request_id for each in commands if isinstance(each, Dispatch)] == ["c"]
    assert state_of(scheduler) is EndpointState.TRIAL


def test_silence_counts_as_a_failure() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)))
    told(scheduler, at(0), arrived("r"), first_token("r"))

    assert scheduler.handle(fell_silent("r"), at(0))[0] == eject("e1", until=at(10), reason="no token in time")


def test_an_ejected_endpoint_gets_nothing_until_its_time_is_over_and_then_one_request_on_trial() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)), places=4)
    fails_once(scheduler, "a", at(0))
    told(scheduler, at(1), arrived("b"), arrived("c"))

    assert scheduler.handle(TimerFired(), at(9.999)) == []
    assert scheduler.handle(TimerFired(), at(10)) == [dispatch("b", place="1 of 4", waited=9)]
    assert state_of(scheduler) is EndpointState.TRIAL


@pytest.mark.parametrize("success", [completed("b"), first_token("b")])
def test_a_trial_that_succeeds_readmits_the_endpoint_with_all_of_its_places(success: Event) -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)), places=3)
    fails_once(scheduler, "a", at(0))
    told(scheduler, at(10), arrived("b"), arrived("c"), arrived("d"))

    commands = scheduler.handle(success, at(11))

    assert commands[0] == readmit("e1", "its trial request succeeded")
    assert [each.request_id for each in commands if isinstance(each, Dispatch)] == ["c", "d"]
    assert state_of(scheduler) is EndpointState.READY


def test_a_trial_that_fails_ejects_it_again_for_twice_as_long_up_to_a_limit() -> None:
    health = HealthRules(failures_max=1, eject_ns=lasting(10), eject_ns_max=lasting(50))
    scheduler = beside_another(a_policy(health=health))
    now, lengths = 0, list[int]()

    for name in "abcde":
        lengths.append(seconds_out(fails_once(scheduler, name, at(now)), at(now)))
        now += lengths[-1]
        told(scheduler, at(now), TimerFired())

    assert lengths == [10, 20, 40, 50, 50]


def test_an_endpoint_ejected_for_ever_so_many_times_is_still_out_for_a_bounded_time() -> None:
    health = HealthRules(failures_max=1, eject_ns=lasting(1), eject_ns_max=lasting(10**9))
    scheduler = beside_another(a_policy(health=health))
    now = length = 0
    for number in range(20):
        length = seconds_out(fails_once(scheduler, f"r{number}", at(now)), at(now))
        now += length
        told(scheduler, at(now), TimerFired())

    assert length == 2**16


def test_where_no_endpoint_is_left_none_is_out_for_longer_than_the_first_time() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)))

    assert seconds_out(fails_once(scheduler, "a", at(0)), at(0)) == 10
    assert seconds_out(fails_once(scheduler, "b", at(10)), at(10)) == 10
    assert seconds_out(fails_once(scheduler, "c", at(20)), at(20)) == 10


def out_until_30() -> Scheduler:
    """`e1` has failed its trial and is out until 30; `spare` takes work, but has no place."""
    scheduler = a_scheduler(
        an_endpoint("e1"), an_endpoint("spare", places=0), policy=a_policy(health=HealthRules(failures_max=1))
    )
    fails_once(scheduler, "a", at(0))
    assert seconds_out(fails_once(scheduler, "b", at(10)), at(10)) == 20
    return scheduler


def test_when_the_last_endpoint_is_ejected_those_that_are_out_come_back_soon() -> None:
    scheduler = out_until_30()
    told(scheduler, at(11), joined("spare", places=1))

    assert seconds_out(fails_once(scheduler, "c", at(12)), at(12)) == 10
    assert scheduler.next_wakeup() == at(22)
    told(scheduler, at(22), TimerFired())
    assert [state_of(scheduler, name) for name in ("e1", "spare")] == [EndpointState.TRIAL] * 2


@pytest.mark.parametrize("loss", [unreadied("spare"), leaving("spare")])
def test_when_the_last_endpoint_is_lost_those_that_are_out_come_back_soon(loss: Event) -> None:
    scheduler = out_until_30()

    told(scheduler, at(12), loss)

    assert scheduler.next_wakeup() == at(22)


def test_who_would_come_back_sooner_anyway_does() -> None:
    scheduler = out_until_30()

    told(scheduler, at(25), unreadied("spare"))

    assert scheduler.next_wakeup() == at(30)


def test_after_a_success_ejections_start_anew() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)))
    fails_once(scheduler, "a", at(0))
    fails_once(scheduler, "b", at(10))
    told(scheduler, at(30), arrived("c"), completed("c"))

    assert fails_once(scheduler, "d", at(31)) == [eject("e1", until=at(41), reason="connection refused")]


def test_on_trial_an_endpoint_that_still_holds_old_attempts_gets_nothing_more() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)), places=4)
    told(scheduler, at(0), arrived("old", stream=False))
    fails_once(scheduler, "a", at(0))
    told(scheduler, at(1), arrived("waits"))

    assert scheduler.handle(TimerFired(), at(10)) == []
    assert state_of(scheduler) is EndpointState.TRIAL
    assert scheduler.handle(completed("old"), at(12)) == [
        readmit("e1", "its trial request succeeded"),
        end("old", Outcome.COMPLETED, attempts=1),
        dispatch("waits", place="1 of 4", waited=11),
    ]


def test_attempts_that_fail_after_the_ejection_do_not_prolong_it() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)), places=4)
    told(scheduler, at(0), arrived("x"), arrived("y"), client_left("x"), client_left("y"))

    assert scheduler.handle(failed("x"), at(0)) == [eject("e1", until=at(10), reason="connection refused")]
    assert scheduler.handle(failed("y"), at(5)) == []
    assert scheduler.next_wakeup() == at(10)


def test_an_engine_that_says_it_is_ready_is_not_believed_before_its_time_is_over() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)))
    fails_once(scheduler, "a", at(0))

    assert scheduler.handle(readied("e1"), at(1)) == []
    assert state_of(scheduler) is EndpointState.EJECTED


def test_an_engine_that_restarts_while_ejected_is_on_trial_as_soon_as_it_is_ready() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)), places=4)
    fails_once(scheduler, "a", at(0))
    told(scheduler, at(1), unreadied("e1"), arrived("b"), arrived("c"))
    assert state_of(scheduler) is EndpointState.WARMING

    assert scheduler.handle(readied("e1"), at(3)) == [dispatch("b", place="1 of 4", waited=2)]
    assert state_of(scheduler) is EndpointState.TRIAL


def test_an_engine_that_restarts_again_and_again_is_out_longer_each_time() -> None:
    scheduler = beside_another(a_policy(health=HealthRules(failures_max=1)))
    fails_once(scheduler, "a", at(0))
    told(scheduler, at(1), unreadied("e1"), readied("e1"))

    assert fails_once(scheduler, "b", at(2)) == [eject("e1", until=at(22), reason="connection refused")]


def test_the_end_of_an_ejection_that_a_restart_overtook_changes_nothing() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)))
    fails_once(scheduler, "a", at(0))
    told(scheduler, at(1), unreadied("e1"))

    assert scheduler.next_wakeup() is None
    assert scheduler.handle(TimerFired(), at(10)) == []
    assert state_of(scheduler) is EndpointState.WARMING


def test_unready_during_a_trial_ends_the_trial_and_the_attempt_that_was_tried_ends_as_it_does() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)))
    fails_once(scheduler, "a", at(0))
    told(scheduler, at(10), arrived("b"), client_left("b"), unreadied("e1"))

    assert scheduler.handle(failed("b"), at(11)) == []
    assert state_of(scheduler) is EndpointState.WARMING
    told(scheduler, at(12), readied("e1"))
    assert state_of(scheduler) is EndpointState.TRIAL


def test_one_that_warms_up_is_not_ejected() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)))
    told(scheduler, at(0), arrived("a"), client_left("a"), unreadied("e1"))

    assert scheduler.handle(failed("a"), at(1)) == []
    assert scheduler.handle(readied("e1"), at(2)) == [readmit("e1", "the engine says it is ready")]


def test_one_that_says_it_is_ready_twice_is_ready_once() -> None:
    scheduler = a_scheduler()

    assert told(scheduler, at(1), readied("e1"), unreadied("e1"), unreadied("e1"), readied("e1")) == [
        readmit("e1", "the engine says it is ready")
    ]


# Silence of streams


def test_streams_without_a_sign_of_life_eject_their_endpoint_and_are_aborted() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2), an_endpoint("e2", places=2))
    told(scheduler, at(0), arrived("cut"), arrived("lively"), arrived("waits for its first token"))
    told(scheduler, at(0), first_token("cut"), first_token("lively"))
    told(scheduler, at(20), progressed("lively"))

    assert scheduler.next_wakeup() == at(30)
    assert scheduler.handle(TimerFired(), at(30)) == [
        eject("e1", until=at(40), reason="no sign of life for 30 s; streams in flight: 1"),
        abort("cut", reason=NO_LIFE),
        abort("waits for its first token", reason=NO_LIFE),
    ]


def test_a_stream_aborted_for_silence_is_retried_if_nothing_has_reached_its_caller() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2), an_endpoint("e2", places=2))
    told(scheduler, at(0), arrived("cut"), arrived("lively"), arrived("waits"), first_token("cut"))
    told(scheduler, at(30), TimerFired())

    assert told(scheduler, at(30.5), aborted("waits"), aborted("cut")) == [
        dispatch("waits", "e2", attempt=2, place="2 of 2"),
        end(
            "cut",
            Outcome.ENGINE_SILENT,
            "after the first token: its endpoint showed no sign of life",
            attempts=1,
            retry_after=1,
        ),
    ]


@pytest.mark.parametrize("sign", [first_token("r"), progressed("r"), progressed("s"), first_token("s"), completed("s")])
def test_a_sign_of_life_of_any_attempt_puts_the_silence_off(sign: Event) -> None:
    scheduler = a_scheduler(places=2)
    told(scheduler, at(0), arrived("r"), arrived("s"), first_token("r"))
    told(scheduler, at(20), sign)

    assert scheduler.handle(TimerFired(), at(30)) == []
    assert scheduler.next_wakeup() == at(50)
    assert isinstance(scheduler.handle(TimerFired(), at(50))[0], Eject)


def test_before_the_first_token_of_any_stream_silence_means_nothing() -> None:
    scheduler = a_scheduler(places=2)
    told(scheduler, at(0), arrived("r"))

    assert scheduler.next_wakeup() is None
    assert scheduler.handle(TimerFired(), at(300)) == []


def test_a_first_token_that_is_reported_twice_is_one_stream() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"), first_token("r"), first_token("r"), completed("r"))

    assert scheduler.next_wakeup() is None


def test_attempts_that_are_not_streamed_may_be_silent() -> None:
    scheduler = a_scheduler(places=2)
    told(scheduler, at(0), arrived("r", stream=False), first_token("r"))
    told(scheduler, at(1), TimerFired())

    assert scheduler.next_wakeup() is None
    assert scheduler.handle(TimerFired(), at(300)) == []


def test_attempts_that_are_not_streamed_go_on_where_streams_are_aborted() -> None:
    scheduler = a_scheduler(places=2)
    told(scheduler, at(0), arrived("streamed"), first_token("streamed"), arrived("whole", stream=False))

    assert scheduler.handle(TimerFired(), at(30))[1:] == [abort("streamed", reason=NO_LIFE)]


def test_silence_is_counted_from_the_first_stream_after_an_idle_time() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"), first_token("r"), completed("r"), arrived("s"))
    told(scheduler, at(100), first_token("s"))

    assert scheduler.next_wakeup() == at(130)


def test_the_silence_of_an_endpoint_is_over_with_its_last_stream() -> None:
    scheduler = a_scheduler(places=3)
    told(
        scheduler, at(0), arrived("r"), arrived("s"), arrived("whole", stream=False), first_token("r"), first_token("s")
    )
    told(scheduler, at(1), completed("r"))
    assert scheduler.next_wakeup() == at(30)

    told(scheduler, at(2), completed("s"))
    assert scheduler.next_wakeup() is None


def test_a_stream_that_does_not_obey_is_aborted_again_and_the_ejection_is_not_prolonged() -> None:
    health = HealthRules(eject_ns=lasting(100))
    scheduler = a_scheduler(policy=a_policy(health=health))
    told(scheduler, at(0), arrived("r"), first_token("r"))
    told(scheduler, at(30), TimerFired())

    assert scheduler.handle(TimerFired(), at(60)) == [abort("r", reason=NO_LIFE)]
    assert state_of(scheduler) is EndpointState.EJECTED


def test_streams_whose_requests_have_ended_need_no_second_abort() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"), first_token("r"), client_left("r"))

    assert scheduler.handle(TimerFired(), at(30)) == [
        eject("e1", until=at(40), reason="no sign of life for 30 s; streams in flight: 1")
    ]


def test_the_streams_of_one_that_is_not_ready_any_more_are_aborted_but_it_is_not_ejected() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"), first_token("r"), unreadied("e1"))

    assert scheduler.handle(TimerFired(), at(30)) == [abort("r", reason=NO_LIFE)]
    assert state_of(scheduler) is EndpointState.WARMING


def test_endpoints_that_fall_silent_together_are_all_ejected_before_any_stream_is_aborted() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("r"), arrived("s"), first_token("r"), first_token("s"))

    assert scheduler.handle(TimerFired(), at(30)) == [
        eject("e1", until=at(40), reason="no sign of life for 30 s; streams in flight: 1"),
        eject("e2", until=at(40), reason="no sign of life for 30 s; streams in flight: 1"),
        abort("r", "e1", reason=NO_LIFE),
        abort("s", "e2", reason=NO_LIFE),
    ]


def test_an_ejected_endpoint_that_rejoins_stays_ejected() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)))
    told(scheduler, at(0), arrived("old", stream=False), joined("e1", places=2))
    fails_once(scheduler, "a", at(0))
    told(scheduler, at(1), leaving("e1"), joined("e1", places=2))

    assert state_of(scheduler) is EndpointState.EJECTED
    assert scheduler.next_wakeup() == at(10)


# Probes


def eject_again(scheduler: Scheduler, now: Instant) -> int:
    """Length of the ejection after a failed trial, in seconds."""
    return seconds_out(fails_once(scheduler, f"again at {now}", now), now)


def an_ejected_endpoint(times: int = 1) -> tuple[Scheduler, Instant]:
    """An endpoint that was just ejected for the `times`-th time in a row, beside another that accepts work."""
    scheduler = beside_another(a_policy(health=HealthRules(failures_max=1)))
    now, length = at(0), seconds_out(fails_once(scheduler, "first", at(0)), at(0))
    for _ in range(times - 1):
        now = Instant(now + length * SECOND)
        scheduler.handle(TimerFired(), now)
        length = eject_again(scheduler, now)
    return scheduler, now


def test_passing_probe_puts_an_ejected_endpoint_on_trial_however_long_its_ejection() -> None:
    scheduler, now = an_ejected_endpoint(times=5)
    wakeup = scheduler.next_wakeup()
    assert wakeup is not None
    assert wakeup - now == 160 * SECOND
    told(scheduler, now, probed("e1", EndpointTrouble.REFUSED, "connection refused"))
    assert state_of(scheduler) is EndpointState.EJECTED

    told(scheduler, now, probed("e1"))

    assert state_of(scheduler) is EndpointState.TRIAL


def test_endpoint_whose_probe_passes_is_ejected_for_ten_seconds_at_most() -> None:
    scheduler, now = an_ejected_endpoint(times=5)
    told(scheduler, now, probed("e1"))

    assert eject_again(scheduler, now) == 10


def test_unused_trial_ends_while_the_probe_passes() -> None:
    scheduler, now = an_ejected_endpoint()
    told(scheduler, now, probed("e1"))
    later = Instant(now + 10 * SECOND)
    assert scheduler.next_wakeup() == later

    assert scheduler.handle(TimerFired(), later) == [readmit("e1", "its probe passes and no request came to try it")]

    assert state_of(scheduler) is EndpointState.READY
    assert seconds_out(fails_once(scheduler, "x", later), later) == 10


def test_trial_with_a_request_in_flight_continues() -> None:
    scheduler, now = an_ejected_endpoint()
    told(scheduler, now, probed("e1"))
    scheduler.handle(arrived("x"), now)

    scheduler.handle(TimerFired(), Instant(now + 10 * SECOND))
    assert state_of(scheduler) is EndpointState.TRIAL

    assert readmit("e1", "its trial request succeeded") in scheduler.handle(completed("x"), Instant(now + 11 * SECOND))


def test_trial_continues_while_the_probe_fails() -> None:
    scheduler, now = an_ejected_endpoint()
    told(scheduler, now, probed("e1"))
    told(scheduler, now, probed("e1", EndpointTrouble.SILENT))

    scheduler.handle(TimerFired(), Instant(now + 10 * SECOND))

    assert state_of(scheduler) is EndpointState.TRIAL


def test_probe_that_passes_during_a_trial_bounds_it() -> None:
    scheduler, now = an_ejected_endpoint()
    back = Instant(now + 10 * SECOND)
    scheduler.handle(TimerFired(), back)
    assert state_of(scheduler) is EndpointState.TRIAL
    assert scheduler.next_wakeup() is None

    told(scheduler, back, probed("e1"))

    assert scheduler.next_wakeup() == Instant(back + 10 * SECOND)


def test_probes_of_an_unknown_endpoint_and_of_a_ready_one_change_nothing() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), probed("nobody"), probed("e1"))

    assert state_of(scheduler) is EndpointState.READY
    assert scheduler.next_wakeup() is None


# Why an endpoint does not serve


def test_summary_shows_why_an_endpoint_was_ejected_until_it_serves() -> None:
    scheduler, now = an_ejected_endpoint()
    seen = endpoint_summary(scheduler, "e1")
    assert (seen.trouble, seen.trouble_detail) == (EndpointTrouble.ERRORS, "connection refused")
    assert not seen.probe_fails

    told(scheduler, now, probed("e1", EndpointTrouble.REFUSED, "x" * 500))
    seen = endpoint_summary(scheduler, "e1")
    assert (seen.trouble, len(seen.trouble_detail), seen.probe_fails) == (EndpointTrouble.REFUSED, 200, True)

    told(scheduler, now, probed("e1"))
    scheduler.handle(arrived("x"), now)
    scheduler.handle(completed("x"), now)
    assert endpoint_summary(scheduler, "e1").trouble is None


@pytest.mark.parametrize(
    ("event", "trouble"),
    [
        (failed("x", fault=Fault.CONNECTION), EndpointTrouble.UNREACHABLE),
        (failed("x", fault=Fault.UNAVAILABLE), EndpointTrouble.ERRORS),
        (failed("x", fault=Fault.ANSWER), EndpointTrouble.ERRORS),
        (fell_silent("x"), EndpointTrouble.SILENT),
    ],
)
def test_summary_shows_the_kind_of_the_last_failure(event: Event, trouble: EndpointTrouble) -> None:
    scheduler = beside_another(a_policy(health=HealthRules(failures_max=1)))
    scheduler.handle(arrived("x"), at(0))
    told(scheduler, at(0), client_left("x"))

    scheduler.handle(event, at(1))

    assert endpoint_summary(scheduler, "e1").trouble is trouble


def test_stalled_endpoint_is_shown_as_silent() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("x"), first_token("x"))

    scheduler.handle(TimerFired(), at(30))

    assert endpoint_summary(scheduler, "e1").trouble is EndpointTrouble.SILENT


def test_endpoint_that_is_ready_again_has_no_trouble() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), probed("e1", EndpointTrouble.LOADING, "loading"), unreadied("e1"))
    assert endpoint_summary(scheduler, "e1").trouble is EndpointTrouble.LOADING

    told(scheduler, at(1), readied("e1"))

    assert endpoint_summary(scheduler, "e1").trouble is None
