"""When the scheduler next wakes up."""

from headgate.core.events import TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.policy import HealthRules
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    arrived,
    at,
    client_disconnected,
    commands_for,
    completed,
    failed,
    first_token,
    only_end,
)


def test_new_scheduler_schedules_no_wakeup() -> None:
    assert Scheduler().next_wakeup() is None


def test_idle_scheduler_schedules_no_wakeup() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"), completed("r"))

    assert scheduler.next_wakeup() is None


def test_next_wakeup_is_earliest_of_expiry_stall_and_readmission() -> None:
    policy = a_policy(classes=(a_class(queue_wait=7),), health=HealthRules(consecutive_failures_max=1))
    scheduler = a_scheduler(policy=policy, places=2)
    commands_for(scheduler, at(0), arrived("streams"), first_token("streams"), arrived("x"), arrived("waits"))
    assert scheduler.next_wakeup() == at(7)

    commands_for(scheduler, at(1), client_disconnected("waits"))
    assert scheduler.next_wakeup() == at(30)

    commands_for(scheduler, at(2), client_disconnected("x"), failed("x"))
    assert scheduler.next_wakeup() == at(12)


def test_early_timer_does_nothing_and_late_timer_handles_everything_due() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs", stream=False))
    commands_for(scheduler, at(1), arrived("a"))
    commands_for(scheduler, at(2), arrived("b"))

    assert scheduler.handle(TimerFired(), at(30)) == []
    first, second = scheduler.handle(TimerFired(), at(100))
    assert [only_end([first]).request_id, only_end([second]).request_id] == ["a", "b"]
    assert scheduler.next_wakeup() is None
