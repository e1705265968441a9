"""Tests for endpoint ejection, trials and readmission."""

import pytest

from headgate.core.commands import Command, Dispatch, Eject
from headgate.core.events import Event, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import EndpointProblem, EndpointState
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
    client_disconnected,
    commands_for,
    completed,
    dispatch,
    duration,
    eject,
    end,
    endpoint_summary,
    engine_rejected,
    failed,
    first_token,
    joined,
    leaving,
    probed,
    progressed,
    readied,
    readmit,
    timed_out,
    unreadied,
)

NO_LIFE = "the endpoint has stalled"


def state_of(scheduler: Scheduler, name: str = "e1") -> EndpointState:
    return endpoint_summary(scheduler, name).state


def fails_once(scheduler: Scheduler, name: str, now: Instant) -> list[Command]:
    """Makes a disconnected client's request fail; such a request is not retried. Returns the commands."""
    [sent] = scheduler.handle(arrived(name), now)
    assert isinstance(sent, Dispatch)
    commands_for(scheduler, now, client_disconnected(name))
    return scheduler.handle(failed(name), now)


def beside_another(policy: Policy) -> Scheduler:
    """Returns a scheduler with the endpoint "e1" and another that is ready but has no slots."""
    return a_scheduler(an_endpoint("e1"), an_endpoint("full", places=0), policy=policy)


def seconds_out(commands: list[Command], now: Instant) -> int:
    [command] = commands
    assert isinstance(command, Eject)
    return (command.until - now) // SECOND


# Consecutive failures


def test_consecutive_failures_eject_an_endpoint() -> None:
    scheduler = a_scheduler()

    assert fails_once(scheduler, "a", at(0)) == []
    assert fails_once(scheduler, "b", at(1)) == []
    assert fails_once(scheduler, "c", at(2)) == [eject("e1", until=at(12), reason="connection refused")]
    assert state_of(scheduler) is EndpointState.EJECTED
    assert scheduler.next_wakeup() == at(12)


@pytest.mark.parametrize("success", [completed("s"), first_token("s")])
def test_success_resets_consecutive_failures(success: Event) -> None:
    scheduler = a_scheduler()
    fails_once(scheduler, "a", at(0))
    fails_once(scheduler, "b", at(0))
    commands_for(scheduler, at(0), arrived("s"), success, aborted("s"))

    assert fails_once(scheduler, "c", at(1)) == []
    assert fails_once(scheduler, "d", at(1)) == []
    assert state_of(scheduler) is EndpointState.READY


def test_aborted_attempt_counts_as_neither_success_nor_failure() -> None:
    scheduler = a_scheduler()
    fails_once(scheduler, "a", at(0))
    fails_once(scheduler, "b", at(0))
    commands_for(scheduler, at(0), arrived("x"), client_disconnected("x"), aborted("x"))

    assert fails_once(scheduler, "c", at(1)) == [eject("e1", until=at(11), reason="connection refused")]


def test_engine_rejection_counts_as_neither_success_nor_failure() -> None:
    """An engine that cannot generate may still reject invalid requests. Those responses must not keep it in service."""
    scheduler = a_scheduler()
    fails_once(scheduler, "a", at(0))
    fails_once(scheduler, "b", at(0))
    commands_for(scheduler, at(0), arrived("x"), engine_rejected("x"))

    assert fails_once(scheduler, "c", at(1)) == [eject("e1", until=at(11), reason="connection refused")]


def test_engine_rejection_does_not_end_a_trial() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)), places=3)
    fails_once(scheduler, "a", at(0))
    commands_for(scheduler, at(10), arrived("b"), arrived("c"), arrived("d"))
    commands = scheduler.handle(engine_rejected("b"), at(11))

    assert [each.request_id for each in commands if isinstance(each, Dispatch)] == ["c"]
    assert state_of(scheduler) is EndpointState.TRIAL


def test_silence_counts_as_a_failure() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)))
    commands_for(scheduler, at(0), arrived("r"), first_token("r"))

    assert scheduler.handle(timed_out("r"), at(0))[0] == eject("e1", until=at(10), reason="no token in time")


def test_ejected_endpoint_gets_no_request_until_its_ejection_ends_and_then_one_trial_request() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)), places=4)
    fails_once(scheduler, "a", at(0))
    commands_for(scheduler, at(1), arrived("b"), arrived("c"))

    assert scheduler.handle(TimerFired(), at(9.999)) == []
    assert scheduler.handle(TimerFired(), at(10)) == [dispatch("b", place="1 of 4", waited=9)]
    assert state_of(scheduler) is EndpointState.TRIAL


@pytest.mark.parametrize("success", [completed("b"), first_token("b")])
def test_successful_trial_readmits_the_endpoint_with_all_its_slots(success: Event) -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)), places=3)
    fails_once(scheduler, "a", at(0))
    commands_for(scheduler, at(10), arrived("b"), arrived("c"), arrived("d"))

    commands = scheduler.handle(success, at(11))

    assert commands[0] == readmit("e1", "the trial request succeeded")
    assert [each.request_id for each in commands if isinstance(each, Dispatch)] == ["c", "d"]
    assert state_of(scheduler) is EndpointState.READY


def test_failed_trial_doubles_the_ejection_time_up_to_a_limit() -> None:
    health = HealthRules(consecutive_failures_max=1, ejection_ns=duration(10), ejection_ns_max=duration(50))
    scheduler = beside_another(a_policy(health=health))
    now, lengths = 0, list[int]()

    for name in "abcde":
        lengths.append(seconds_out(fails_once(scheduler, name, at(now)), at(now)))
        now += lengths[-1]
        commands_for(scheduler, at(now), TimerFired())

    assert lengths == [10, 20, 40, 50, 50]


def test_ejection_time_is_bounded_after_many_ejections() -> None:
    health = HealthRules(consecutive_failures_max=1, ejection_ns=duration(1), ejection_ns_max=duration(10**9))
    scheduler = beside_another(a_policy(health=health))
    now = length = 0
    for number in range(20):
        length = seconds_out(fails_once(scheduler, f"r{number}", at(now)), at(now))
        now += length
        commands_for(scheduler, at(now), TimerFired())

    assert length == 2**16


def test_ejection_of_the_last_endpoint_is_not_extended() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)))

    assert seconds_out(fails_once(scheduler, "a", at(0)), at(0)) == 10
    assert seconds_out(fails_once(scheduler, "b", at(10)), at(10)) == 10
    assert seconds_out(fails_once(scheduler, "c", at(20)), at(20)) == 10


def out_until_30() -> Scheduler:
    """Returns a scheduler where `e1` is ejected until 30 s, and `droppable` is ready but has no slots."""
    scheduler = a_scheduler(
        an_endpoint("e1"),
        an_endpoint("spare", places=0),
        policy=a_policy(health=HealthRules(consecutive_failures_max=1)),
    )
    fails_once(scheduler, "a", at(0))
    assert seconds_out(fails_once(scheduler, "b", at(10)), at(10)) == 20
    return scheduler


def test_ejecting_the_last_endpoint_shortens_earlier_ejections() -> None:
    scheduler = out_until_30()
    commands_for(scheduler, at(11), joined("spare", places=1))

    assert seconds_out(fails_once(scheduler, "c", at(12)), at(12)) == 10
    assert scheduler.next_wakeup() == at(22)
    commands_for(scheduler, at(22), TimerFired())
    assert [state_of(scheduler, name) for name in ("e1", "spare")] == [EndpointState.TRIAL] * 2


@pytest.mark.parametrize("loss", [unreadied("spare"), leaving("spare")])
def test_losing_the_last_endpoint_shortens_earlier_ejections(loss: Event) -> None:
    scheduler = out_until_30()

    commands_for(scheduler, at(12), loss)

    assert scheduler.next_wakeup() == at(22)


def test_losing_the_last_endpoint_does_not_extend_an_ejection() -> None:
    scheduler = out_until_30()

    commands_for(scheduler, at(25), unreadied("spare"))

    assert scheduler.next_wakeup() == at(30)


def test_success_resets_the_ejection_time() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)))
    fails_once(scheduler, "a", at(0))
    fails_once(scheduler, "b", at(10))
    commands_for(scheduler, at(30), arrived("c"), completed("c"))

    assert fails_once(scheduler, "d", at(31)) == [eject("e1", until=at(41), reason="connection refused")]


def test_endpoint_on_trial_with_old_attempts_gets_no_further_request() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)), places=4)
    commands_for(scheduler, at(0), arrived("old", stream=False))
    fails_once(scheduler, "a", at(0))
    commands_for(scheduler, at(1), arrived("waits"))

    assert scheduler.handle(TimerFired(), at(10)) == []
    assert state_of(scheduler) is EndpointState.TRIAL
    assert scheduler.handle(completed("old"), at(12)) == [
        readmit("e1", "the trial request succeeded"),
        end("old", Outcome.COMPLETED, attempts=1),
        dispatch("waits", place="1 of 4", waited=11),
    ]


def test_failures_after_the_ejection_do_not_extend_it() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)), places=4)
    commands_for(scheduler, at(0), arrived("x"), arrived("y"), client_disconnected("x"), client_disconnected("y"))

    assert scheduler.handle(failed("x"), at(0)) == [eject("e1", until=at(10), reason="connection refused")]
    assert scheduler.handle(failed("y"), at(5)) == []
    assert scheduler.next_wakeup() == at(10)


def test_ready_report_does_not_end_an_ejection() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)))
    fails_once(scheduler, "a", at(0))

    assert scheduler.handle(readied("e1"), at(1)) == []
    assert state_of(scheduler) is EndpointState.EJECTED


def test_restarted_engine_is_on_trial_as_soon_as_it_is_ready() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)), places=4)
    fails_once(scheduler, "a", at(0))
    commands_for(scheduler, at(1), unreadied("e1"), arrived("b"), arrived("c"))
    assert state_of(scheduler) is EndpointState.WARMING

    assert scheduler.handle(readied("e1"), at(3)) == [dispatch("b", place="1 of 4", waited=2)]
    assert state_of(scheduler) is EndpointState.TRIAL


def test_repeatedly_restarting_engine_is_ejected_for_longer_each_time() -> None:
    scheduler = beside_another(a_policy(health=HealthRules(consecutive_failures_max=1)))
    fails_once(scheduler, "a", at(0))
    commands_for(scheduler, at(1), unreadied("e1"), readied("e1"))

    assert fails_once(scheduler, "b", at(2)) == [eject("e1", until=at(22), reason="connection refused")]


def test_ejection_timer_has_no_effect_after_a_restart() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)))
    fails_once(scheduler, "a", at(0))
    commands_for(scheduler, at(1), unreadied("e1"))

    assert scheduler.next_wakeup() is None
    assert scheduler.handle(TimerFired(), at(10)) == []
    assert state_of(scheduler) is EndpointState.WARMING


def test_unready_report_ends_a_trial() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)))
    fails_once(scheduler, "a", at(0))
    commands_for(scheduler, at(10), arrived("b"), client_disconnected("b"), unreadied("e1"))

    assert scheduler.handle(failed("b"), at(11)) == []
    assert state_of(scheduler) is EndpointState.WARMING
    commands_for(scheduler, at(12), readied("e1"))
    assert state_of(scheduler) is EndpointState.TRIAL


def test_warming_endpoint_is_not_ejected() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)))
    commands_for(scheduler, at(0), arrived("a"), client_disconnected("a"), unreadied("e1"))

    assert scheduler.handle(failed("a"), at(1)) == []
    assert scheduler.handle(readied("e1"), at(2)) == [readmit("e1", "the engine reports that it is ready")]


def test_repeated_ready_reports_have_no_effect() -> None:
    scheduler = a_scheduler()

    assert commands_for(scheduler, at(1), readied("e1"), unreadied("e1"), unreadied("e1"), readied("e1")) == [
        readmit("e1", "the engine reports that it is ready")
    ]


# Stalled streams


def test_silent_streams_eject_their_endpoint_and_are_aborted() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2), an_endpoint("e2", places=2))
    commands_for(scheduler, at(0), arrived("cut"), arrived("lively"), arrived("waits for its first token"))
    commands_for(scheduler, at(0), first_token("cut"), first_token("lively"))
    commands_for(scheduler, at(20), progressed("lively"))

    assert scheduler.next_wakeup() == at(30)
    assert scheduler.handle(TimerFired(), at(30)) == [
        eject("e1", until=at(40), reason="no activity for 30 s; streams in flight: 1"),
        abort("cut", reason=NO_LIFE),
        abort("waits for its first token", reason=NO_LIFE),
    ]


def test_stream_aborted_for_silence_is_retried_if_its_caller_received_nothing() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2), an_endpoint("e2", places=2))
    commands_for(scheduler, at(0), arrived("cut"), arrived("lively"), arrived("waits"), first_token("cut"))
    commands_for(scheduler, at(30), TimerFired())

    assert commands_for(scheduler, at(30.5), aborted("waits"), aborted("cut")) == [
        dispatch("waits", "e2", attempt=2, place="2 of 2"),
        end(
            "cut",
            Outcome.ENGINE_TIMEOUT,
            "after the first token: the endpoint stalled",
            attempts=1,
            retry_after=1,
        ),
    ]


@pytest.mark.parametrize("sign", [first_token("r"), progressed("r"), progressed("s"), first_token("s"), completed("s")])
def test_activity_on_any_attempt_delays_the_stall(sign: Event) -> None:
    scheduler = a_scheduler(places=2)
    commands_for(scheduler, at(0), arrived("r"), arrived("s"), first_token("r"))
    commands_for(scheduler, at(20), sign)

    assert scheduler.handle(TimerFired(), at(30)) == []
    assert scheduler.next_wakeup() == at(50)
    assert isinstance(scheduler.handle(TimerFired(), at(50))[0], Eject)


def test_endpoint_does_not_stall_before_the_first_token_of_any_stream() -> None:
    scheduler = a_scheduler(places=2)
    commands_for(scheduler, at(0), arrived("r"))

    assert scheduler.next_wakeup() is None
    assert scheduler.handle(TimerFired(), at(300)) == []


def test_repeated_first_token_is_counted_as_one_stream() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"), first_token("r"), first_token("r"), completed("r"))

    assert scheduler.next_wakeup() is None


def test_non_streaming_attempts_may_be_silent() -> None:
    scheduler = a_scheduler(places=2)
    commands_for(scheduler, at(0), arrived("r", stream=False), first_token("r"))
    commands_for(scheduler, at(1), TimerFired())

    assert scheduler.next_wakeup() is None
    assert scheduler.handle(TimerFired(), at(300)) == []


def test_non_streaming_attempts_continue_when_streams_are_aborted() -> None:
    scheduler = a_scheduler(places=2)
    commands_for(scheduler, at(0), arrived("streamed"), first_token("streamed"), arrived("whole", stream=False))

    assert scheduler.handle(TimerFired(), at(30))[1:] == [abort("streamed", reason=NO_LIFE)]


def test_stall_time_starts_with_the_first_stream_after_an_idle_period() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"), first_token("r"), completed("r"), arrived("s"))
    commands_for(scheduler, at(100), first_token("s"))

    assert scheduler.next_wakeup() == at(130)


def test_stall_timer_ends_with_the_last_stream() -> None:
    scheduler = a_scheduler(places=3)
    commands_for(
        scheduler, at(0), arrived("r"), arrived("s"), arrived("whole", stream=False), first_token("r"), first_token("s")
    )
    commands_for(scheduler, at(1), completed("r"))
    assert scheduler.next_wakeup() == at(30)

    commands_for(scheduler, at(2), completed("s"))
    assert scheduler.next_wakeup() is None


def test_stream_ignoring_its_abort_is_aborted_again_without_extending_the_ejection() -> None:
    health = HealthRules(ejection_ns=duration(100))
    scheduler = a_scheduler(policy=a_policy(health=health))
    commands_for(scheduler, at(0), arrived("r"), first_token("r"))
    commands_for(scheduler, at(30), TimerFired())

    assert scheduler.handle(TimerFired(), at(60)) == [abort("r", reason=NO_LIFE)]
    assert state_of(scheduler) is EndpointState.EJECTED


def test_streams_of_ended_requests_are_not_aborted_again() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"), first_token("r"), client_disconnected("r"))

    assert scheduler.handle(TimerFired(), at(30)) == [
        eject("e1", until=at(40), reason="no activity for 30 s; streams in flight: 1")
    ]


def test_streams_on_an_unready_endpoint_are_aborted_without_ejecting_it() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"), first_token("r"), unreadied("e1"))

    assert scheduler.handle(TimerFired(), at(30)) == [abort("r", reason=NO_LIFE)]
    assert state_of(scheduler) is EndpointState.WARMING


def test_endpoints_stalling_together_are_ejected_before_any_stream_is_aborted() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("r"), arrived("s"), first_token("r"), first_token("s"))

    assert scheduler.handle(TimerFired(), at(30)) == [
        eject("e1", until=at(40), reason="no activity for 30 s; streams in flight: 1"),
        eject("e2", until=at(40), reason="no activity for 30 s; streams in flight: 1"),
        abort("r", "e1", reason=NO_LIFE),
        abort("s", "e2", reason=NO_LIFE),
    ]


def test_ejected_endpoint_stays_ejected_if_it_rejoins() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)))
    commands_for(scheduler, at(0), arrived("old", stream=False), joined("e1", places=2))
    fails_once(scheduler, "a", at(0))
    commands_for(scheduler, at(1), leaving("e1"), joined("e1", places=2))

    assert state_of(scheduler) is EndpointState.EJECTED
    assert scheduler.next_wakeup() == at(10)


# Probes


def eject_again(scheduler: Scheduler, now: Instant) -> int:
    """Fails a trial and returns the duration of the new ejection in seconds."""
    return seconds_out(fails_once(scheduler, f"again at {now}", now), now)


def an_ejected_endpoint(times: int = 1) -> tuple[Scheduler, Instant]:
    """Returns a scheduler whose endpoint "e1" has just been ejected for the `times`-th time in a row, and the time."""
    scheduler = beside_another(a_policy(health=HealthRules(consecutive_failures_max=1)))
    now, length = at(0), seconds_out(fails_once(scheduler, "first", at(0)), at(0))
    for _ in range(times - 1):
        now = Instant(now + length * SECOND)
        scheduler.handle(TimerFired(), now)
        length = eject_again(scheduler, now)
    return scheduler, now


def test_passing_probe_puts_an_ejected_endpoint_on_trial_regardless_of_its_ejection_time() -> None:
    scheduler, now = an_ejected_endpoint(times=5)
    wakeup = scheduler.next_wakeup()
    assert wakeup is not None
    assert wakeup - now == 160 * SECOND
    commands_for(scheduler, now, probed("e1", EndpointProblem.CONNECTION_REFUSED, "connection refused"))
    assert state_of(scheduler) is EndpointState.EJECTED

    commands_for(scheduler, now, probed("e1"))

    assert state_of(scheduler) is EndpointState.TRIAL


def test_endpoint_with_a_passing_probe_is_ejected_for_at_most_ten_seconds() -> None:
    scheduler, now = an_ejected_endpoint(times=5)
    commands_for(scheduler, now, probed("e1"))

    assert eject_again(scheduler, now) == 10


def test_unused_trial_ends_while_the_probe_passes() -> None:
    scheduler, now = an_ejected_endpoint()
    commands_for(scheduler, now, probed("e1"))
    later = Instant(now + 10 * SECOND)
    assert scheduler.next_wakeup() == later

    assert scheduler.handle(TimerFired(), later) == [
        readmit("e1", "the probe passes and no request arrived during the trial")
    ]

    assert state_of(scheduler) is EndpointState.READY
    assert seconds_out(fails_once(scheduler, "x", later), later) == 10


def test_trial_with_a_request_in_flight_continues() -> None:
    scheduler, now = an_ejected_endpoint()
    commands_for(scheduler, now, probed("e1"))
    scheduler.handle(arrived("x"), now)

    scheduler.handle(TimerFired(), Instant(now + 10 * SECOND))
    assert state_of(scheduler) is EndpointState.TRIAL

    assert readmit("e1", "the trial request succeeded") in scheduler.handle(completed("x"), Instant(now + 11 * SECOND))


def test_unused_trial_does_not_end_while_the_probe_fails() -> None:
    scheduler, now = an_ejected_endpoint()
    commands_for(scheduler, now, probed("e1"))
    commands_for(scheduler, Instant(now + SECOND), probed("e1", EndpointProblem.UNRESPONSIVE))

    scheduler.handle(TimerFired(), Instant(now + 10 * SECOND))

    assert state_of(scheduler) is EndpointState.TRIAL


def test_probe_passing_during_a_trial_limits_its_duration() -> None:
    scheduler, now = an_ejected_endpoint()
    back = Instant(now + 10 * SECOND)
    scheduler.handle(TimerFired(), back)
    assert state_of(scheduler) is EndpointState.TRIAL
    assert scheduler.next_wakeup() is None

    commands_for(scheduler, back, probed("e1"))

    assert scheduler.next_wakeup() == Instant(back + 10 * SECOND)


def test_probes_on_unknown_and_ready_endpoints_have_no_effect() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), probed("nobody"), probed("e1"))

    assert state_of(scheduler) is EndpointState.READY
    assert scheduler.next_wakeup() is None


# Reported trouble


def test_summary_shows_why_an_endpoint_was_ejected_until_it_serves() -> None:
    scheduler, now = an_ejected_endpoint()
    seen = endpoint_summary(scheduler, "e1")
    assert (seen.trouble, seen.trouble_detail) == (EndpointProblem.ERRORS, "connection refused")
    assert not seen.probe_fails

    commands_for(scheduler, now, probed("e1", EndpointProblem.CONNECTION_REFUSED, "x" * 500))
    seen = endpoint_summary(scheduler, "e1")
    assert (seen.trouble, len(seen.trouble_detail), seen.probe_fails) == (EndpointProblem.CONNECTION_REFUSED, 200, True)

    commands_for(scheduler, now, probed("e1"))
    scheduler.handle(arrived("x"), now)
    scheduler.handle(completed("x"), now)
    assert endpoint_summary(scheduler, "e1").trouble is None


@pytest.mark.parametrize(
    ("event", "trouble"),
    [
        (failed("x", fault=Fault.CONNECTION), EndpointProblem.UNREACHABLE),
        (failed("x", fault=Fault.UNAVAILABLE), EndpointProblem.ERRORS),
        (failed("x", fault=Fault.RESPONSE), EndpointProblem.ERRORS),
        (timed_out("x"), EndpointProblem.UNRESPONSIVE),
    ],
)
def test_summary_shows_the_kind_of_the_last_failure(event: Event, trouble: EndpointProblem) -> None:
    scheduler = beside_another(a_policy(health=HealthRules(consecutive_failures_max=1)))
    scheduler.handle(arrived("x"), at(0))
    commands_for(scheduler, at(0), client_disconnected("x"))

    scheduler.handle(event, at(1))

    assert endpoint_summary(scheduler, "e1").trouble is trouble


def test_stalled_endpoint_is_shown_as_silent() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("x"), first_token("x"))

    scheduler.handle(TimerFired(), at(30))

    assert endpoint_summary(scheduler, "e1").trouble is EndpointProblem.UNRESPONSIVE


def test_ready_endpoint_shows_no_trouble() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), probed("e1", EndpointProblem.LOADING, "loading"), unreadied("e1"))
    assert endpoint_summary(scheduler, "e1").trouble is EndpointProblem.LOADING

    commands_for(scheduler, at(1), readied("e1"))

    assert endpoint_summary(scheduler, "e1").trouble is None
