"""Is the number of requests that an engine runs at once learned from its own queue?"""

from dataclasses import replace
from typing import Any

import pytest

from headgate.core.commands import Dispatch
from headgate.core.events import EndpointMeasured
from headgate.core.routing.sequence_limit import EXTRA_MIN, KV_PERCENT_MAX, READS, SequenceLimit
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import EndpointState
from headgate.model.units import EndpointId
from testing.builders import a_class, a_policy, a_scheduler, an_endpoint, arrived, at, failed, readied, told, unreadied


def learned(*reports: tuple[int, int], kv_percent: int | None = 50, foreign: int = 0) -> int | None:
    """The limit after reports of running and waiting requests."""
    limit = SequenceLimit()
    for running, waiting in reports:
        limit.observe(running=running, waiting=waiting, kv_percent=kv_percent, foreign=foreign)
    return limit.learned


def dispatched(scheduler: Scheduler, count: int, moment: float, **fields: Any) -> int:
    commands = told(scheduler, at(moment), *(arrived(f"r{moment}-{number}", **fields) for number in range(count)))
    return sum(isinstance(each, Dispatch) for each in commands)


def report(scheduler: Scheduler, moment: float, *, running: int, waiting: int) -> int:
    """The number of requests that the scheduler sends after the report."""
    commands = told(scheduler, at(moment), EndpointMeasured(EndpointId("e1"), running, waiting, 40))
    return sum(isinstance(each, Dispatch) for each in commands)


def a_full_scheduler() -> Scheduler:
    """One whose engine has 40 requests and has shown that it runs 32 at once."""
    scheduler = a_scheduler(places=64)
    assert dispatched(scheduler, 40, 0) == 40
    for number in range(READS):
        report(scheduler, 1 + number, running=32, waiting=8)
    return scheduler


def test_the_limit_is_what_runs_while_others_wait() -> None:
    assert learned(*[(32, 8)] * (READS - 1)) is None
    assert learned(*[(32, 8)] * READS) == 32


def test_requests_that_just_ended_do_not_count() -> None:
    assert learned((32, 5), (31, 1), (32, 9), (31, 2)) == 32
    assert learned((256, 5), (250, 1), (247, 9), (256, 2)) == 256


@pytest.mark.parametrize(
    "reports",
    [
        pytest.param([(32, 0)] * 9, id="nothing waits"),
        pytest.param([(0, 4)] * 9, id="nothing runs"),
        pytest.param([(10, 3), (14, 2), (19, 4), (25, 3), (31, 2)], id="the batch is still growing"),
        pytest.param([(32, 3), (32, 3), (32, 3), (32, 0)] * 3, id="no queue in between"),
    ],
)
def test_no_limit_is_learned_otherwise(reports: list[tuple[int, int]]) -> None:
    assert learned(*reports) is None


@pytest.mark.parametrize("kv_percent", [None, KV_PERCENT_MAX + 1])
def test_requests_may_wait_for_memory_that_is_full_or_unknown(kv_percent: int | None) -> None:
    assert learned(*[(32, 8)] * 9, kv_percent=kv_percent) is None


def test_no_limit_is_learned_while_others_use_the_engine() -> None:
    assert learned(*[(32, 8)] * 9, foreign=3) is None


def test_a_limit_learned_too_low_rises_or_is_forgotten() -> None:
    assert learned(*[(8, 2)] * READS, (9, 1)) == 9
    assert learned(*[(8, 2)] * READS, (9, 0)) is None


def test_an_endpoint_gets_some_more_than_its_engine_runs() -> None:
    scheduler = a_full_scheduler()
    [endpoint] = scheduler.summary().endpoints

    assert (endpoint.sequences_max, endpoint.in_flight_max) == (32, 64)
    assert dispatched(scheduler, 1, 10) == 0, "40 are there, and 32 + 8 may be"


def test_requests_that_wait_are_sent_when_the_limit_is_disproved() -> None:
    scheduler = a_full_scheduler()
    assert dispatched(scheduler, 5, 10) == 0

    assert report(scheduler, 11, running=40, waiting=0) == 5


def test_an_engine_that_starts_again_may_have_another_limit() -> None:
    scheduler = a_full_scheduler()
    told(scheduler, at(10), unreadied("e1"))
    told(scheduler, at(11), readied("e1"))

    assert scheduler.summary().endpoints[0].sequences_max is None


def test_reports_of_an_ejected_engine_show_no_limit() -> None:
    scheduler = a_full_scheduler()
    told(scheduler, at(10), *(failed(f"r0-{number}") for number in range(3)))
    assert scheduler.summary().endpoints[0].state is EndpointState.EJECTED
    report(scheduler, 11, running=32, waiting=8)

    assert scheduler.summary().endpoints[0].sequences_max is None


def test_an_engine_that_shares_its_device_is_bounded_by_its_own_requests() -> None:
    one, other = (replace(an_endpoint(name, places=64), device="gpu") for name in ("e1", "e2"))
    scheduler = a_scheduler(one, other)
    dispatched(scheduler, 4, 0)
    for number in range(READS):
        report(scheduler, 1 + number, running=1, waiting=1)
    dispatched(scheduler, 60, 10)

    # What the second has does not count for the first, which takes as many as its engine runs and four more.
    [first, second] = [each.in_flight for each in scheduler.summary().endpoints]
    assert first == 1 + EXTRA_MIN
    assert second > first


def test_reserved_places_are_a_part_of_those_that_the_engine_fills() -> None:
    reserving = replace(a_class("interactive"), reserve_percent=25)
    scheduler = a_scheduler(places=128, policy=a_policy(classes=(reserving, a_class("batch", band=1))))
    dispatched(scheduler, 10, 0, service_class="batch")
    for number in range(READS):
        report(scheduler, 1 + number, running=8, waiting=2)

    # 8 + 4 places, of which three are kept.
    assert dispatched(scheduler, 5, 10, service_class="batch") == 0
    assert dispatched(scheduler, 5, 11, service_class="interactive") == 2
