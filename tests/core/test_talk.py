"""Engine metrics: load from other clients, stale metrics and reported KV capacity."""

import pytest

from headgate.core.commands import Dispatch
from headgate.core.events import EndpointMetricsReported, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.policy import Pool
from headgate.model.units import EndpointId, PoolName
from testing.builders import (
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    leaving,
    readied,
    unreadied,
)


def measured(
    name: str, *, running: int = 0, waiting: int = 0, kv_percent: int | None = None, kv_tokens: int | None = None
) -> EndpointMetricsReported:
    return EndpointMetricsReported(EndpointId(name), running, waiting, kv_percent, kv_tokens)


def sent_to(scheduler: Scheduler, count: int, moment: float) -> list[str]:
    commands = commands_for(scheduler, at(moment), *(arrived(f"r{moment}-{number}") for number in range(count)))
    return [each.endpoint_id for each in commands if isinstance(each, Dispatch)]


def test_requests_from_other_clients_occupy_slots() -> None:
    scheduler = a_scheduler(places=10)
    commands_for(scheduler, at(1), measured("e1", running=5, waiting=2))

    assert len(sent_to(scheduler, 20, 1)) == 10 - (5 + 2 - 2)


def test_small_difference_from_sent_requests_is_ignored() -> None:
    scheduler = a_scheduler(places=10)
    sent_to(scheduler, 3, 0)
    commands_for(scheduler, at(1), measured("e1", running=5))

    assert len(sent_to(scheduler, 20, 1)) == 7


def test_next_report_updates_load_from_other_clients() -> None:
    scheduler = a_scheduler(places=4)
    commands_for(scheduler, at(1), measured("e1", running=50))
    assert sent_to(scheduler, 3, 1) == []

    assert len([each for each in commands_for(scheduler, at(2), measured("e1")) if isinstance(each, Dispatch)]) == 3


def test_load_from_other_clients_affects_endpoint_selection() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=999), an_endpoint("e2", places=999))
    commands_for(scheduler, at(1), measured("e1", running=400), measured("e2"))

    assert sent_to(scheduler, 5, 1) == ["e2"] * 5


def test_memory_used_by_other_clients_is_not_available() -> None:
    policy = a_policy(pools=(Pool(PoolName("p"), kv_tokens=10_000),))
    scheduler = a_scheduler(policy=policy, places=99)
    commands_for(scheduler, at(1), measured("e1", running=1, kv_percent=100))

    # The first request is sent regardless, because the gateway has no other requests on the endpoint.
    assert len(sent_to(scheduler, 5, 1)) == 1


def test_memory_usage_is_ignored_if_capacity_is_unknown() -> None:
    scheduler = a_scheduler(places=99)
    commands_for(scheduler, at(1), measured("e1", running=1, kv_percent=100))

    assert len(sent_to(scheduler, 5, 1)) == 5


def three() -> Scheduler:
    scheduler = a_scheduler(*(an_endpoint(f"e{number}", places=10) for number in (1, 2, 3)))
    commands_for(scheduler, at(0), *(measured(f"e{number}") for number in (1, 2, 3)))
    return scheduler


def test_endpoint_with_stale_metrics_gets_no_requests_until_it_reports_again() -> None:
    scheduler = three()
    commands_for(scheduler, at(20), measured("e1"), measured("e2"))
    commands_for(scheduler, at(30), TimerFired())
    assert sorted(set(sent_to(scheduler, 25, 31))) == ["e1", "e2"]

    [*sent] = commands_for(scheduler, at(32), measured("e3"))
    assert {each.endpoint_id for each in sent if isinstance(each, Dispatch)} == {"e3"}


def test_stale_endpoints_are_used_at_80_percent_if_most_are_stale() -> None:
    scheduler = three()
    commands_for(scheduler, at(20), measured("e1"))
    commands_for(scheduler, at(30), TimerFired())
    sent = sent_to(scheduler, 40, 31)

    assert {name: sent.count(name) for name in ("e1", "e2", "e3")} == {"e1": 10, "e2": 8, "e3": 8}


def test_stale_endpoint_is_excluded_when_most_others_report_again() -> None:
    scheduler = three()
    commands_for(scheduler, at(30), TimerFired())
    commands_for(scheduler, at(31), measured("e1"), measured("e2"))

    assert sorted(set(sent_to(scheduler, 25, 32))) == ["e1", "e2"]


def test_next_wakeup_is_when_metrics_become_stale() -> None:
    scheduler = three()

    assert scheduler.next_wakeup() == at(30)


def test_endpoint_that_never_reported_is_not_treated_as_stale() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=10), an_endpoint("e2", places=10))
    commands_for(scheduler, at(0), measured("e1"))
    commands_for(scheduler, at(29), measured("e1"))
    commands_for(scheduler, at(50), TimerFired())

    assert sorted(set(sent_to(scheduler, 8, 50))) == ["e1", "e2"]


def test_restarted_engine_is_not_treated_as_stale() -> None:
    scheduler = three()
    commands_for(scheduler, at(1), measured("e1", running=50), unreadied("e1"), readied("e1"))
    commands_for(scheduler, at(20), measured("e2"), measured("e3"))
    commands_for(scheduler, at(40), TimerFired())

    assert "e1" in sent_to(scheduler, 9, 40)


@pytest.mark.parametrize("name", ["e1", "nobody"])
def test_metrics_from_removed_or_unknown_endpoint_are_ignored(name: str) -> None:
    scheduler = a_scheduler(places=10)
    commands_for(scheduler, at(0), measured(name), leaving("e1"))

    assert commands_for(scheduler, at(1), measured(name)) == []
    assert scheduler.next_wakeup() is None


# Reported KV capacity


def many_sent(scheduler: Scheduler, moment: float = 1) -> int:
    return len(sent_to(scheduler, 20, moment))


def test_requests_beyond_reported_kv_capacity_wait_in_gateway() -> None:
    unknown, reported = a_scheduler(places=10), a_scheduler(places=10)
    commands_for(reported, at(1), measured("e1", kv_tokens=1_000))
    commands_for(reported, at(1), measured("e1", kv_tokens=1_000))

    assert many_sent(unknown) == 10
    assert 1 <= many_sent(reported) < 5


def test_configured_kv_capacity_overrides_reported_one() -> None:
    policy = a_policy(pools=(Pool(PoolName("p"), kv_tokens=1_000_000),))
    scheduler = a_scheduler(policy=policy, places=10)
    commands_for(scheduler, at(1), measured("e1", kv_tokens=1_000))

    assert many_sent(scheduler) == 10


def test_reported_kv_capacity_is_forgotten_when_engine_restarts() -> None:
    scheduler = a_scheduler(places=10)
    commands_for(scheduler, at(1), measured("e1", kv_tokens=1_000), unreadied("e1"), readied("e1"))

    assert many_sent(scheduler, 60) == 10
