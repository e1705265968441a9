"""Tests for endpoints whose probe is failing: ejection if there is no activity, trials, and rejected requests."""

from dataclasses import replace

import pytest

from headgate.core.commands import Command, Dispatch, Eject, End
from headgate.core.events import Event, TimerFired
from headgate.core.routing.endpoints import PROBE_FAILING_NS_MAX
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import EndpointProblem, EndpointState
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules, Policy
from headgate.model.units import SECOND
from testing.builders import (
    a_policy,
    a_scheduler,
    aborted,
    an_endpoint,
    arrived,
    at,
    client_disconnected,
    commands_for,
    completed,
    dispatch,
    eject,
    endpoint_summary,
    failed,
    first_token,
    joined,
    leaving,
    probed,
    progressed,
    readied,
    readmit,
    unreadied,
)

LIMIT_S = PROBE_FAILING_NS_MAX // SECOND
REASON = f"the probe fails, and there was no activity for {LIMIT_S} s: GET /health timed out"


def fails(name: str = "e1", trouble: EndpointProblem = EndpointProblem.UNRESPONSIVE) -> Event:
    return probed(name, trouble, "GET /health timed out")


def state_of(scheduler: Scheduler, name: str = "e1") -> EndpointState:
    return endpoint_summary(scheduler, name).state


def ejections(commands: list[Command]) -> list[str]:
    return [each.endpoint_id for each in commands if isinstance(each, Eject)]


def the_end(commands: list[Command]) -> End:
    [ending] = [each for each in commands if isinstance(each, End)]
    return ending


def an_unresponsive_endpoint(policy: Policy | None = None) -> Scheduler:
    """Returns a scheduler whose only endpoint was ejected from 10 s to 20 s because its probe had failed since 0 s."""
    scheduler = a_scheduler(policy=policy, places=4)
    commands_for(scheduler, at(0), fails())
    assert scheduler.handle(TimerFired(), at(10)) == [eject("e1", until=at(20), reason=REASON)]
    return scheduler


# Ejection


@pytest.mark.parametrize(
    "trouble", [EndpointProblem.CONNECTION_REFUSED, EndpointProblem.UNRESPONSIVE, EndpointProblem.ERRORS]
)
def test_idle_endpoint_is_ejected_if_its_probe_fails(trouble: EndpointProblem) -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(1), fails(trouble=trouble))

    assert scheduler.next_wakeup() == at(11)
    assert scheduler.handle(TimerFired(), at(10.999)) == []
    assert scheduler.handle(TimerFired(), at(11)) == [eject("e1", until=at(21), reason=REASON)]
    assert state_of(scheduler) is EndpointState.EJECTED


def test_ejection_reports_the_kind_of_trouble_without_detail() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), probed("e1", EndpointProblem.CONNECTION_REFUSED))

    [command] = scheduler.handle(TimerFired(), at(10))

    assert isinstance(command, Eject)
    assert command.reason == "the probe fails, and there was no activity for 10 s: connection_refused"


def test_hung_endpoint_is_ejected_even_if_its_callers_leave_early() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=9), an_endpoint("full", places=0))
    commands_for(scheduler, at(0), fails())
    for second in range(1, 10):
        name = f"r{second}"
        commands_for(scheduler, at(second), arrived(name))
        commands_for(scheduler, at(second + 0.5), client_disconnected(name), aborted(name))

    assert ejections(scheduler.handle(TimerFired(), at(10))) == ["e1"]


def test_attempts_in_flight_continue_after_the_ejection() -> None:
    scheduler = a_scheduler(places=2)
    commands_for(scheduler, at(0), arrived("slow"), fails())

    assert scheduler.handle(TimerFired(), at(10)) == [eject("e1", until=at(20), reason=REASON)]
    assert the_end(scheduler.handle(completed("slow"), at(11))).outcome is Outcome.COMPLETED


@pytest.mark.parametrize("sign", [first_token("r"), progressed("s"), completed("s")])
def test_activity_restarts_the_timeout(sign: Event) -> None:
    scheduler = a_scheduler(places=2)
    commands_for(scheduler, at(0), arrived("s"), first_token("s"), arrived("r"), fails())
    commands_for(scheduler, at(7), sign)

    assert scheduler.handle(TimerFired(), at(10)) == []
    assert scheduler.next_wakeup() == at(17)
    assert ejections(scheduler.handle(TimerFired(), at(17))) == ["e1"]


def test_activity_before_the_probe_fails_is_ignored() -> None:
    scheduler = a_scheduler(places=2)
    commands_for(scheduler, at(0), arrived("s"), first_token("s"))
    commands_for(scheduler, at(1), completed("s"))
    commands_for(scheduler, at(2), fails())

    assert ejections(scheduler.handle(TimerFired(), at(12))) == ["e1"]


def test_different_trouble_does_not_restart_the_timeout() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), fails())
    commands_for(scheduler, at(6), probed("e1", EndpointProblem.CONNECTION_REFUSED, "connection refused"))

    [command] = scheduler.handle(TimerFired(), at(10))

    assert command == eject("e1", until=at(20), reason=REASON.replace("GET /health timed out", "connection refused"))


@pytest.mark.parametrize("event", [probed("e1"), unreadied("e1"), leaving("e1")])
def test_timer_ends_if_the_probe_passes_or_the_endpoint_stops_serving(event: Event) -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), fails())
    commands_for(scheduler, at(5), event)

    assert scheduler.next_wakeup() is None
    assert scheduler.handle(TimerFired(), at(10)) == []


def test_probe_failing_again_starts_a_new_timeout() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), fails())
    commands_for(scheduler, at(5), probed("e1"))
    commands_for(scheduler, at(8), fails())

    assert scheduler.next_wakeup() == at(18)


def test_warming_endpoint_is_not_ejected() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), unreadied("e1"), fails())

    assert scheduler.next_wakeup() is None
    commands_for(scheduler, at(20), readied("e1"))
    assert state_of(scheduler) is EndpointState.READY
    assert scheduler.next_wakeup() is None


def test_ejection_for_failures_ends_the_timer() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)))
    commands_for(scheduler, at(0), fails(), arrived("a"), client_disconnected("a"))
    commands_for(scheduler, at(1), failed("a"))

    assert state_of(scheduler) is EndpointState.EJECTED
    assert scheduler.handle(TimerFired(), at(10)) == []


def test_failing_probes_in_a_zone_do_not_eject_serving_endpoints() -> None:
    zones = {"a1": "a", "a2": "a", "a3": "a", "b1": "b"}
    scheduler = a_scheduler(*(replace(an_endpoint(name), zone=zone) for name, zone in zones.items()))
    commands_for(scheduler, at(0), fails("a1"), fails("a2"))

    assert ejections(scheduler.handle(TimerFired(), at(10))) == ["a1", "a2"]
    assert state_of(scheduler, "a3") is EndpointState.READY


# Trials


def test_passing_probe_puts_the_endpoint_on_trial() -> None:
    scheduler = an_unresponsive_endpoint()
    commands_for(scheduler, at(12), probed("e1"))

    assert state_of(scheduler) is EndpointState.TRIAL
    assert scheduler.handle(arrived("x"), at(13)) == [dispatch("x", place="1 of 4")]


def test_endpoint_returns_on_trial_even_if_its_probe_fails() -> None:
    """The probe may be wrong. A successful request readmits the endpoint."""
    scheduler = an_unresponsive_endpoint()
    commands_for(scheduler, at(20), TimerFired())
    assert state_of(scheduler) is EndpointState.TRIAL

    commands_for(scheduler, at(21), arrived("x"))
    assert scheduler.handle(completed("x"), at(22))[0] == readmit("e1", "the trial request succeeded")
    assert scheduler.handle(TimerFired(), at(30)) == []
    assert ejections(scheduler.handle(TimerFired(), at(32))) == ["e1"]


def test_trial_without_activity_ends_and_the_next_ejection_is_longer() -> None:
    scheduler = an_unresponsive_endpoint()
    spans = list[tuple[int, int]]()
    for _ in range(7):
        back = scheduler.next_wakeup()
        assert back is not None
        commands_for(scheduler, back, TimerFired())
        again = scheduler.next_wakeup()
        assert again is not None
        [command] = scheduler.handle(TimerFired(), again)
        assert isinstance(command, Eject)
        spans.append(((again - back) // SECOND, (command.until - again) // SECOND))

    assert spans == [(10, 20), (10, 40), (10, 80), (10, 160), (10, 300), (10, 300), (10, 300)]


def test_hung_endpoint_on_trial_is_ejected_even_if_its_callers_leave_early() -> None:
    scheduler = an_unresponsive_endpoint()
    commands_for(scheduler, at(20), TimerFired())
    for second in (21, 24, 27):
        [sent] = scheduler.handle(arrived(f"r{second}"), at(second))
        assert isinstance(sent, Dispatch)
        commands_for(scheduler, at(second + 2), client_disconnected(f"r{second}"), aborted(f"r{second}"))

    [command] = scheduler.handle(TimerFired(), at(30))

    assert isinstance(command, Eject)
    assert command.until == at(50)


def test_ejection_of_an_unresponsive_endpoint_is_not_shortened() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2", places=0))
    commands_for(scheduler, at(0), fails("e1"))
    for second in (10, 20, 30):
        commands_for(scheduler, at(second), TimerFired())
    assert scheduler.next_wakeup() == at(50)

    commands_for(scheduler, at(31), unreadied("e2"))

    assert scheduler.next_wakeup() == at(50)


# Requests


def test_request_is_rejected_while_the_only_endpoint_is_unresponsive() -> None:
    scheduler = an_unresponsive_endpoint()

    ending = the_end(scheduler.handle(arrived("x"), at(11)))

    assert (ending.outcome, ending.attempts) == (Outcome.NO_ENDPOINTS, 0)
    assert ending.retry_after_ns is not None


def test_request_waits_for_an_ejected_endpoint_until_it_is_unresponsive() -> None:
    """An engine that restarts within a few seconds serves the requests that arrived in the meantime."""
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)))
    commands_for(scheduler, at(0), arrived("a"), client_disconnected("a"))
    commands_for(scheduler, at(0), failed("a"), fails())

    assert scheduler.handle(arrived("early"), at(9)) == []
    commands_for(scheduler, at(9.5), client_disconnected("early"), TimerFired())
    commands_for(scheduler, at(10), TimerFired())
    commands_for(scheduler, at(10), arrived("trial"), client_disconnected("trial"))
    commands_for(scheduler, at(10), failed("trial"))

    assert the_end(scheduler.handle(arrived("late"), at(11))).outcome is Outcome.NO_ENDPOINTS


def test_failed_trial_request_is_not_retried_on_an_unresponsive_endpoint() -> None:
    scheduler = an_unresponsive_endpoint()
    commands_for(scheduler, at(20), TimerFired(), arrived("x"))

    ending = the_end(scheduler.handle(failed("x"), at(20)))

    assert (ending.outcome, ending.attempts) == (Outcome.NO_ENDPOINTS, 1)


def test_request_waits_if_another_endpoint_is_expected() -> None:
    scheduler = an_unresponsive_endpoint()
    commands_for(scheduler, at(11), joined("e2"))

    assert scheduler.handle(arrived("x"), at(12)) == []
    assert scheduler.handle(readied("e2"), at(13))[-1] == dispatch("x", "e2", place="1 of 1", waited=1)
