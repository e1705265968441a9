"""When does the scheduler want to be called again?"""

from headgate.core.events import TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.policy import HealthRules
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    arrived,
    at,
    client_left,
    completed,
    failed,
    first_token,
    the_end,
    told,
)


def test_a_new_scheduler_has_nothing_to_wait_for() -> None:
    assert Scheduler().next_wakeup() is None


def test_an_idle_scheduler_has_nothing_to_wait_for() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"), completed("r"))

    assert scheduler.next_wakeup() is None


def test_the_nearest_of_expiry_silence_and_return_is_named() -> None:
    policy = a_policy(classes=(a_class(queue_wait=7),), health=HealthRules(failures_max=1))
    scheduler = a_scheduler(policy=policy, places=2)
    told(scheduler, at(0), arrived("streams"), first_token("streams"), arrived("x"), arrived("waits"))
    assert scheduler.next_wakeup() == at(7)

    told(scheduler, at(1), client_left("waits"))
    assert scheduler.next_wakeup() == at(30)

    told(scheduler, at(2), client_left("x"), failed("x"))
    assert scheduler.next_wakeup() == at(12)


def test_a_timer_that_fires_early_does_nothing_and_one_that_fires_late_does_all_that_was_due() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs", stream=False))
    told(scheduler, at(1), arrived("a"))
    told(scheduler, at(2), arrived("b"))

    assert scheduler.handle(TimerFired(), at(30)) == []
    first, second = scheduler.handle(TimerFired(), at(100))
    assert [the_end([first]).request_id, the_end([second]).request_id] == ["a", "b"]
    assert scheduler.next_wakeup() is None
