"""Slow start of new endpoints."""

from dataclasses import replace

import pytest

from headgate.core.commands import Dispatch
from headgate.core.events import TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import EndpointState
from headgate.model.policy import HealthRules
from testing.builders import (
    a_policy,
    a_scheduler,
    a_scheduler_without_endpoints,
    an_endpoint,
    arrived,
    at,
    commands_for,
    duration,
    failed,
    joined,
    leaving,
    readied,
    unreadied,
)

PLACES = 10
FULL = replace(a_policy(), health=HealthRules(consecutive_failures_max=1, slow_start_ns=duration(10)))


def grown_up(places: int = PLACES) -> Scheduler:
    """Returns a scheduler whose endpoint e1 has completed its slow start and has no free slot."""
    scheduler = a_scheduler(an_endpoint("e1", places=places), policy=FULL)
    commands_for(scheduler, at(10), *(arrived(f"old-{number}") for number in range(places)))
    return scheduler


def came(scheduler: Scheduler, name: str, moment: float) -> None:
    commands_for(scheduler, at(moment), joined(name, places=PLACES), readied(name))


def sent(scheduler: Scheduler, moment: float, count: int = 3 * PLACES) -> list[str]:
    """Sends `count` requests at the same time and returns the endpoints of those that do not have to wait."""
    commands = commands_for(scheduler, at(moment), *(arrived(f"r{moment}-{number}") for number in range(count)))
    return [each.endpoint_id for each in commands if isinstance(each, Dispatch)]


def test_new_endpoint_gains_one_fifth_of_its_slots_per_step() -> None:
    scheduler = grown_up()
    came(scheduler, "e2", 20)

    assert sent(scheduler, 20) == ["e2"] * 2
    for step in range(1, 5):
        went = commands_for(scheduler, at(20 + 2 * step), TimerFired())
        assert [each.endpoint_id for each in went if isinstance(each, Dispatch)] == ["e2"] * 2
    assert scheduler.summary().endpoints[1].in_flight == PLACES


def test_new_endpoint_gains_no_slots_between_steps() -> None:
    scheduler = grown_up()
    came(scheduler, "e2", 20)
    sent(scheduler, 20)

    assert scheduler.next_wakeup() == at(22)
    assert commands_for(scheduler, at(21.9), TimerFired()) == []


def test_endpoints_starting_together_use_all_slots_immediately() -> None:
    scheduler = a_scheduler_without_endpoints(FULL)
    for number in range(3):
        came(scheduler, f"e{number}", number)

    assert len(sent(scheduler, 3)) == 3 * PLACES


def test_single_endpoint_uses_all_slots_immediately() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), policy=FULL)
    commands_for(scheduler, at(50), leaving("e1"))
    came(scheduler, "e2", 60)

    assert sent(scheduler, 60) == ["e2"] * PLACES


def test_new_endpoint_uses_all_slots_immediately_if_others_are_on_trial() -> None:
    scheduler = grown_up()
    commands_for(scheduler, at(20), failed("old-0"))
    commands_for(scheduler, at(60), TimerFired())
    assert scheduler.summary().endpoints[0].state is EndpointState.TRIAL
    came(scheduler, "e2", 61)

    assert sent(scheduler, 61) == ["e2"] * PLACES


def test_slow_start_ends_when_only_an_endpoint_on_trial_remains() -> None:
    scheduler = grown_up()
    came(scheduler, "e2", 11)
    commands_for(scheduler, at(20), failed("old-0"))
    commands_for(scheduler, at(60), TimerFired())
    came(scheduler, "e3", 61)
    commands_for(scheduler, at(61), leaving("e2"))

    assert sent(scheduler, 61).count("e3") == PLACES


def test_endpoint_with_one_slot_uses_it_immediately() -> None:
    scheduler = grown_up()
    commands_for(scheduler, at(20), joined("e2", places=1), readied("e2"))

    assert sent(scheduler, 20) == ["e2"]


@pytest.mark.parametrize("goes", [leaving("e1"), unreadied("e1"), failed("old-0")])
def test_slow_start_ends_when_established_endpoint_is_gone(goes: object) -> None:
    scheduler = grown_up()
    came(scheduler, "e2", 20)
    sent(scheduler, 20)

    went = commands_for(scheduler, at(21), goes)  # type: ignore[arg-type]

    assert [each.endpoint_id for each in went if isinstance(each, Dispatch)] == ["e2"] * (PLACES - 2)


def test_slow_start_ends_if_all_other_endpoints_are_in_slow_start() -> None:
    """Once the established endpoint has left, the new ones use all of their slots."""
    scheduler = grown_up()
    came(scheduler, "e2", 20)
    came(scheduler, "e3", 20)
    commands_for(scheduler, at(21), leaving("e1"))

    assert len(sent(scheduler, 21)) == 2 * PLACES


def test_slow_start_continues_while_established_endpoint_remains() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=0), an_endpoint("e2", places=0), policy=FULL)
    came(scheduler, "e3", 20)
    commands_for(scheduler, at(21), leaving("e1"))

    assert sent(scheduler, 21) == ["e3"] * 2


def test_restarted_engine_repeats_slow_start() -> None:
    scheduler = grown_up()
    came(scheduler, "e2", 20)
    commands_for(scheduler, at(23), unreadied("e2"))
    commands_for(scheduler, at(24), readied("e2"))

    assert sent(scheduler, 24) == ["e2"] * 2


def test_policy_can_disable_slow_start() -> None:
    at_once = replace(a_policy(), health=HealthRules(slow_start_ns=duration(0)))
    scheduler = a_scheduler(an_endpoint("e1", places=0), policy=at_once)
    came(scheduler, "e2", 20)

    assert sent(scheduler, 20) == ["e2"] * PLACES


def test_endpoint_leaving_during_slow_start_schedules_no_wakeup() -> None:
    scheduler = grown_up()
    came(scheduler, "e2", 20)
    commands_for(scheduler, at(21), leaving("e2"))

    assert scheduler.next_wakeup() is None
