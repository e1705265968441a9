"""Is the number of requests that an engine runs at once learned from its own queue?"""

import pytest

from headgate.core.commands import Dispatch
from headgate.core.events import EndpointMeasured
from headgate.core.routing.sequence_limit import KV_PERCENT_MAX, READS, SequenceLimit
from headgate.core.scheduler import Scheduler
from headgate.model.units import EndpointId
from testing.builders import a_scheduler, arrived, at, readied, told, unreadied


def learned(*reports: tuple[int, int], kv_percent: int | None = 50) -> int | None:
    """The limit after reports of running and waiting requests."""
    limit = SequenceLimit()
    for running, waiting in reports:
        limit.observe(running=running, waiting=waiting, kv_percent=kv_percent)
    return limit.learned


def dispatched(scheduler: Scheduler, count: int, moment: float) -> int:
    commands = told(scheduler, at(moment), *(arrived(f"r{moment}-{number}") for number in range(count)))
    return sum(isinstance(each, Dispatch) for each in commands)


def report(scheduler: Scheduler, moment: float, *, running: int, waiting: int) -> int:
    """The number of requests that the scheduler sends after the report."""
    commands = told(scheduler, at(moment), EndpointMeasured(EndpointId("e1"), running, waiting, 40))
    return sum(isinstance(each, Dispatch) for each in commands)


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


def test_an_engine_without_memory_shows_no_limit_of_requests() -> None:
    assert learned(*[(32, 8)] * 9, kv_percent=KV_PERCENT_MAX + 1) is None
    assert learned(*[(32, 8)] * 9, kv_percent=None) == 32


def test_a_limit_learned_too_low_rises_with_what_the_engine_runs() -> None:
    assert learned(*[(8, 2)] * READS, (9, 0)) == 9


def test_an_endpoint_gets_little_more_than_its_engine_runs() -> None:
    scheduler = a_scheduler(places=64)
    assert dispatched(scheduler, 40, 0) == 40
    for number in range(READS):
        report(scheduler, 1 + number, running=32, waiting=8)

    assert scheduler.summary().endpoints[0].sequences_max == 32
    assert scheduler.summary().endpoints[0].places == 32
    assert dispatched(scheduler, 1, 10) == 0, "40 are there, and 32 + 3 may be"


def test_requests_that_wait_are_sent_when_the_limit_rises() -> None:
    scheduler = a_scheduler(places=64)
    assert dispatched(scheduler, 10, 0) == 10
    for number in range(READS):
        assert report(scheduler, 1 + number, running=8, waiting=2) == 0
    assert dispatched(scheduler, 5, 10) == 0

    assert report(scheduler, 11, running=10, waiting=0) == 1


def test_an_engine_that_starts_again_may_have_another_limit() -> None:
    scheduler = a_scheduler(places=64)
    for number in range(READS):
        report(scheduler, 1 + number, running=8, waiting=2)
    told(scheduler, at(10), unreadied("e1"))
    told(scheduler, at(11), readied("e1"))

    assert scheduler.summary().endpoints[0].sequences_max is None
    assert scheduler.summary().endpoints[0].places == 64
