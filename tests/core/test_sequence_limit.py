"""Learning how many requests an engine runs at the same time from the engine's own queue."""

from dataclasses import replace
from typing import Any

import pytest

from headgate.core.commands import Dispatch
from headgate.core.events import EndpointMetricsReported
from headgate.core.routing.sequence_limit import EXTRA_MIN, KV_PERCENT_MAX, READS, SequenceLimit
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import EndpointState
from headgate.model.units import EndpointId
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    failed,
    readied,
    unreadied,
)


def learned(*reports: tuple[int, int], kv_percent: int | None = 50, foreign: int = 0) -> int | None:
    """Returns the limit learned from reports of running and waiting requests."""
    limit = SequenceLimit()
    for running, waiting in reports:
        limit.observe(running=running, waiting=waiting, kv_percent=kv_percent, foreign=foreign)
    return limit.learned


def dispatched(scheduler: Scheduler, count: int, moment: float, **fields: Any) -> int:
    commands = commands_for(
        scheduler, at(moment), *(arrived(f"r{moment}-{number}", **fields) for number in range(count))
    )
    return sum(isinstance(each, Dispatch) for each in commands)


def report(scheduler: Scheduler, moment: float, *, running: int, waiting: int) -> int:
    """Reports engine metrics and returns how many requests the scheduler then sends."""
    commands = commands_for(scheduler, at(moment), EndpointMetricsReported(EndpointId("e1"), running, waiting, 40))
    return sum(isinstance(each, Dispatch) for each in commands)


def a_full_scheduler() -> Scheduler:
    """Returns a scheduler whose engine has 40 requests and a learned limit of 32."""
    scheduler = a_scheduler(places=64)
    assert dispatched(scheduler, 40, 0) == 40
    for number in range(READS):
        report(scheduler, 1 + number, running=32, waiting=8)
    return scheduler


def test_limit_is_number_of_running_requests_while_others_are_waiting() -> None:
    assert learned(*[(32, 8)] * (READS - 1)) is None
    assert learned(*[(32, 8)] * READS) == 32


def test_brief_drop_in_running_requests_does_not_lower_limit() -> None:
    assert learned((32, 5), (31, 1), (32, 9), (31, 2)) == 32
    assert learned((256, 5), (250, 1), (247, 9), (256, 2)) == 256


@pytest.mark.parametrize(
    "reports",
    [
        pytest.param([(32, 0)] * 9, id="no waiting requests"),
        pytest.param([(0, 4)] * 9, id="no running requests"),
        pytest.param([(10, 3), (14, 2), (19, 4), (25, 3), (31, 2)], id="growing batch"),
        pytest.param([(32, 3), (32, 3), (32, 3), (32, 0)] * 3, id="queue repeatedly empty"),
    ],
)
def test_limit_is_learned_only_with_full_batch_and_lasting_queue(reports: list[tuple[int, int]]) -> None:
    assert learned(*reports) is None


@pytest.mark.parametrize("kv_percent", [None, KV_PERCENT_MAX + 1])
def test_no_limit_is_learned_if_kv_cache_is_full_or_its_usage_is_unknown(kv_percent: int | None) -> None:
    assert learned(*[(32, 8)] * 9, kv_percent=kv_percent) is None


def test_no_limit_is_learned_while_other_clients_use_engine() -> None:
    assert learned(*[(32, 8)] * 9, foreign=3) is None


def test_limit_that_was_too_low_rises_or_is_forgotten() -> None:
    assert learned(*[(8, 2)] * READS, (9, 1)) == 9
    assert learned(*[(8, 2)] * READS, (9, 0)) is None


def test_endpoint_gets_slightly_more_requests_than_engine_runs() -> None:
    scheduler = a_full_scheduler()
    [endpoint] = scheduler.summary().endpoints

    assert (endpoint.sequences_max, endpoint.in_flight_max) == (32, 64)
    assert dispatched(scheduler, 1, 10) == 0, "40 requests are in flight and the limit is 32 + 8"


def test_queued_requests_are_sent_when_limit_is_disproved() -> None:
    scheduler = a_full_scheduler()
    assert dispatched(scheduler, 5, 10) == 0

    assert report(scheduler, 11, running=40, waiting=0) == 5


def test_limit_is_forgotten_when_engine_restarts() -> None:
    scheduler = a_full_scheduler()
    commands_for(scheduler, at(10), unreadied("e1"))
    commands_for(scheduler, at(11), readied("e1"))

    assert scheduler.summary().endpoints[0].sequences_max is None


def test_no_limit_is_learned_from_ejected_engine() -> None:
    scheduler = a_full_scheduler()
    commands_for(scheduler, at(10), *(failed(f"r0-{number}") for number in range(3)))
    assert scheduler.summary().endpoints[0].state is EndpointState.EJECTED
    report(scheduler, 11, running=32, waiting=8)

    assert scheduler.summary().endpoints[0].sequences_max is None


def test_engine_on_shared_device_counts_only_its_own_requests_towards_its_limit() -> None:
    one, other = (replace(an_endpoint(name, places=64), device="gpu") for name in ("e1", "e2"))
    scheduler = a_scheduler(one, other)
    dispatched(scheduler, 4, 0)
    for number in range(READS):
        report(scheduler, 1 + number, running=1, waiting=1)
    dispatched(scheduler, 60, 10)

    # Requests on the second endpoint do not count towards the first, which gets four more than its engine runs.
    [first, second] = [each.in_flight for each in scheduler.summary().endpoints]
    assert first == 1 + EXTRA_MIN
    assert second > first


def test_reserved_slots_are_part_of_learned_limit() -> None:
    reserving = replace(a_class("interactive"), reserve_percent=25)
    scheduler = a_scheduler(places=128, policy=a_policy(classes=(reserving, a_class("batch", band=1))))
    dispatched(scheduler, 10, 0, service_class="batch")
    for number in range(READS):
        report(scheduler, 1 + number, running=8, waiting=2)

    # Three of the 8 + 4 slots are reserved.
    assert dispatched(scheduler, 5, 10, service_class="batch") == 0
    assert dispatched(scheduler, 5, 11, service_class="interactive") == 2
