"""A request that arrives at an empty queue is sent at once, with the same result as if it had been queued."""

from dataclasses import replace
from random import Random

import pytest

from headgate.core.counters import Counters
from headgate.core.queues.fair_queue import FairQueue
from headgate.model.policy import Policy
from headgate.model.units import ClassName, PoolName, TenantId
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    dispatch,
    readied,
    unreadied,
)

PLAIN = a_policy(tenants=("acme", "beta"))
WITH_MIN_SHARE = a_policy(
    classes=(a_class(), replace(a_class("batch", band=2), min_share_percent=20)), tenants=("acme", "beta")
)


def after_five_requests(policy: Policy, service_class: str | None, *, queued: bool) -> Counters:
    """Returns the snapshot after five requests, each of which was alone, and was either queued or not."""
    scheduler = a_scheduler(an_endpoint(places=2), policy=policy)
    for second, tenant in enumerate(("acme", "beta", "beta", "acme", "beta"), 1):
        if queued:
            commands_for(scheduler, at(second), unreadied("e1"))
        commands_for(scheduler, at(second), arrived(f"r{second}", tenant, service_class=service_class))
        assert scheduler.summary().queued[ClassName(service_class or "interactive")] == queued
        commands_for(scheduler, at(second), readied("e1"), completed(f"r{second}", tokens=10 * second))
    return scheduler.counters(at(9))


@pytest.mark.parametrize("seed", range(20))
def test_lone_turn_is_charged_like_an_accepted_offer(seed: int) -> None:
    chance, offered, alone = Random(seed), FairQueue(), FairQueue()
    for _ in range(50):
        tenant, cost = TenantId(chance.choice("abc")), chance.choice((0, 1, 5, 100))
        correction = chance.randrange(-3, 30)
        offered.add(tenant)
        assert offered.offer(lambda _, cost=cost: cost)
        offered.clear()
        alone.charge_alone(tenant, cost)
        for turns in (offered, alone):
            turns.settle(tenant, correction)
        assert alone.counter(1, PoolName("p")) == offered.counter(1, PoolName("p"))


def test_request_is_sent_at_once_if_an_endpoint_has_a_free_slot() -> None:
    scheduler = a_scheduler(places=2)

    assert commands_for(scheduler, at(0), arrived("a")) == [dispatch("a", place="1 of 2")]
    assert not any(scheduler.summary().queued.values())
    assert scheduler.next_wakeup() is None


def test_request_is_queued_while_tenants_of_an_earlier_scheduler_are_expected() -> None:
    earlier = a_scheduler(an_endpoint(places=1), policy=PLAIN)
    commands_for(earlier, at(0), arrived("runs"), arrived("waits", "beta"))
    successor = a_scheduler(an_endpoint(places=2), policy=PLAIN)
    successor.restore(earlier.counters(at(0)), at(0))

    assert commands_for(successor, at(1), arrived("r")) == [dispatch("r", place="1 of 2")]
    assert successor.counters(at(1)).fair_queues[0].waiting == ()


@pytest.mark.parametrize(("policy", "name"), [(PLAIN, None), (WITH_MIN_SHARE, "batch")])
def test_counters_do_not_depend_on_whether_requests_were_queued(policy: Policy, name: str | None) -> None:
    at_once, queued = (after_five_requests(policy, name, queued=each) for each in (False, True))

    assert at_once.fair_queues == queued.fair_queues
    assert at_once.min_shares == queued.min_shares
    assert at_once.attempt_windows == queued.attempt_windows
