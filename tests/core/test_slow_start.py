"""How much does an endpoint take that has just come?"""

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
    failed,
    joined,
    lasting,
    leaving,
    readied,
    told,
    unreadied,
)

PLACES = 10
FULL = replace(a_policy(), health=HealthRules(failures_max=1, slow_start_ns=lasting(10)))


def grown_up(places: int = PLACES) -> Scheduler:
    """With e1, which has served for long enough, and has no place left."""
    scheduler = a_scheduler(an_endpoint("e1", places=places), policy=FULL)
    told(scheduler, at(10), *(arrived(f"old-{number}") for number in range(places)))
    return scheduler


def came(scheduler: Scheduler, name: str, moment: float) -> None:
    told(scheduler, at(moment), joined(name, places=PLACES), readied(name))


def sent(scheduler: Scheduler, moment: float, count: int = 3 * PLACES) -> list[str]:
    """Where those go that are asked all at once; those that wait go as soon as they may."""
    commands = told(scheduler, at(moment), *(arrived(f"r{moment}-{number}") for number in range(count)))
    return [each.endpoint_id for each in commands if isinstance(each, Dispatch)]


def test_who_joins_others_takes_a_fifth_at_first_and_a_fifth_more_with_every_step() -> None:
    scheduler = grown_up()
    came(scheduler, "e2", 20)

    assert sent(scheduler, 20) == ["e2"] * 2
    for step in range(1, 5):
        went = told(scheduler, at(20 + 2 * step), TimerFired())
        assert [each.endpoint_id for each in went if isinstance(each, Dispatch)] == ["e2"] * 2
    assert scheduler.summary().endpoints[1].in_flight == PLACES


def test_between_two_steps_it_takes_no_more() -> None:
    scheduler = grown_up()
    came(scheduler, "e2", 20)
    sent(scheduler, 20)

    assert scheduler.next_wakeup() == at(22)
    assert told(scheduler, at(21.9), TimerFired()) == []


def test_those_that_begin_together_take_all_at_once() -> None:
    scheduler = a_scheduler_without_endpoints(FULL)
    for number in range(3):
        came(scheduler, f"e{number}", number)

    assert len(sent(scheduler, 3)) == 3 * PLACES


def test_the_only_one_takes_all_at_once() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), policy=FULL)
    told(scheduler, at(50), leaving("e1"))
    came(scheduler, "e2", 60)

    assert sent(scheduler, 60) == ["e2"] * PLACES


def test_beside_one_on_trial_it_takes_all_at_once() -> None:
    scheduler = grown_up()
    told(scheduler, at(20), failed("old-0"))
    told(scheduler, at(60), TimerFired())
    assert scheduler.summary().endpoints[0].state is EndpointState.TRIAL
    came(scheduler, "e2", 61)

    assert sent(scheduler, 61) == ["e2"] * PLACES


def test_with_none_left_but_one_on_trial_it_takes_all() -> None:
    scheduler = grown_up()
    came(scheduler, "e2", 11)
    told(scheduler, at(20), failed("old-0"))
    told(scheduler, at(60), TimerFired())
    came(scheduler, "e3", 61)
    told(scheduler, at(61), leaving("e2"))

    assert sent(scheduler, 61).count("e3") == PLACES


def test_even_the_smallest_takes_one() -> None:
    scheduler = grown_up()
    told(scheduler, at(20), joined("e2", places=1), readied("e2"))

    assert sent(scheduler, 20) == ["e2"]


@pytest.mark.parametrize("goes", [leaving("e1"), unreadied("e1"), failed("old-0")])
def test_it_takes_all_as_soon_as_those_are_gone_that_it_joined(goes: object) -> None:
    scheduler = grown_up()
    came(scheduler, "e2", 20)
    sent(scheduler, 20)

    went = told(scheduler, at(21), goes)  # type: ignore[arg-type]

    assert [each.endpoint_id for each in went if isinstance(each, Dispatch)] == ["e2"] * (PLACES - 2)


def test_others_that_start_slowly_are_nobody_to_lean_on() -> None:
    """With the one gone that had served, all of them take all they can."""
    scheduler = grown_up()
    came(scheduler, "e2", 20)
    came(scheduler, "e3", 20)
    told(scheduler, at(21), leaving("e1"))

    assert len(sent(scheduler, 21)) == 2 * PLACES


def test_while_another_that_served_is_left_it_goes_on_slowly() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=0), an_endpoint("e2", places=0), policy=FULL)
    came(scheduler, "e3", 20)
    told(scheduler, at(21), leaving("e1"))

    assert sent(scheduler, 21) == ["e3"] * 2


def test_an_engine_that_starts_again_starts_slowly_again() -> None:
    scheduler = grown_up()
    came(scheduler, "e2", 20)
    told(scheduler, at(23), unreadied("e2"))
    told(scheduler, at(24), readied("e2"))

    assert sent(scheduler, 24) == ["e2"] * 2


def test_none_is_slow_where_the_policy_says_so() -> None:
    at_once = replace(a_policy(), health=HealthRules(slow_start_ns=lasting(0)))
    scheduler = a_scheduler(an_endpoint("e1", places=0), policy=at_once)
    came(scheduler, "e2", 20)

    assert sent(scheduler, 20) == ["e2"] * PLACES


def test_who_leaves_meanwhile_is_forgotten() -> None:
    scheduler = grown_up()
    came(scheduler, "e2", 20)
    told(scheduler, at(21), leaving("e2"))

    assert scheduler.next_wakeup() is None
