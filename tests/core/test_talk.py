"""Does what engines say of themselves correct what we have sent, and what is their silence taken for?"""

import pytest

from headgate.core.commands import Dispatch
from headgate.core.events import EndpointMeasured, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.policy import Pool
from headgate.model.units import EndpointId, PoolName
from testing.builders import (
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    leaving,
    readied,
    told,
    unreadied,
)


def measured(
    name: str, *, running: int = 0, waiting: int = 0, kv_percent: int | None = None, kv_tokens: int | None = None
) -> EndpointMeasured:
    return EndpointMeasured(EndpointId(name), running, waiting, kv_percent, kv_tokens)


def sent_to(scheduler: Scheduler, count: int, moment: float) -> list[str]:
    commands = told(scheduler, at(moment), *(arrived(f"r{moment}-{number}") for number in range(count)))
    return [each.endpoint_id for each in commands if isinstance(each, Dispatch)]


def test_what_others_have_sent_to_an_engine_takes_its_places() -> None:
    scheduler = a_scheduler(places=10)
    told(scheduler, at(1), measured("e1", running=5, waiting=2))

    assert len(sent_to(scheduler, 20, 1)) == 10 - (5 + 2 - 2)


def test_a_little_more_than_was_sent_is_only_the_time_between_two_looks() -> None:
    scheduler = a_scheduler(places=10)
    sent_to(scheduler, 3, 0)
    told(scheduler, at(1), measured("e1", running=5))

    assert len(sent_to(scheduler, 20, 1)) == 7


def test_it_is_forgotten_when_the_engine_says_so() -> None:
    scheduler = a_scheduler(places=4)
    told(scheduler, at(1), measured("e1", running=50))
    assert sent_to(scheduler, 3, 1) == []

    assert len([each for each in told(scheduler, at(2), measured("e1")) if isinstance(each, Dispatch)]) == 3


def test_the_least_loaded_is_judged_by_what_others_have_sent_too() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=999), an_endpoint("e2", places=999))
    told(scheduler, at(1), measured("e1", running=400), measured("e2"))

    assert sent_to(scheduler, 5, 1) == ["e2"] * 5


def test_memory_that_others_use_is_not_given_again() -> None:
    policy = a_policy(pools=(Pool(PoolName("p"), kv_tokens=10_000),))
    scheduler = a_scheduler(policy=policy, places=99)
    told(scheduler, at(1), measured("e1", running=1, kv_percent=100))

    # The first is alone there, as far as we know, and goes anyhow.
    assert len(sent_to(scheduler, 5, 1)) == 1


def test_memory_is_no_matter_where_nobody_said_how_much_there_is() -> None:
    scheduler = a_scheduler(places=99)
    told(scheduler, at(1), measured("e1", running=1, kv_percent=100))

    assert len(sent_to(scheduler, 5, 1)) == 5


def three() -> Scheduler:
    scheduler = a_scheduler(*(an_endpoint(f"e{number}", places=10) for number in (1, 2, 3)))
    told(scheduler, at(0), *(measured(f"e{number}") for number in (1, 2, 3)))
    return scheduler


def test_one_that_fell_silent_among_talking_ones_gets_nothing_until_it_talks_again() -> None:
    scheduler = three()
    told(scheduler, at(20), measured("e1"), measured("e2"))
    told(scheduler, at(30), TimerFired())
    assert sorted(set(sent_to(scheduler, 25, 31))) == ["e1", "e2"]

    [*sent] = told(scheduler, at(32), measured("e3"))
    assert {each.endpoint_id for each in sent if isinstance(each, Dispatch)} == {"e3"}


def test_where_most_fell_silent_work_goes_on_a_fifth_below_the_limits() -> None:
    scheduler = three()
    told(scheduler, at(20), measured("e1"))
    told(scheduler, at(30), TimerFired())
    sent = sent_to(scheduler, 40, 31)

    assert {name: sent.count(name) for name in ("e1", "e2", "e3")} == {"e1": 10, "e2": 8, "e3": 8}


def test_when_enough_talk_again_the_silent_rest_is_passed_over() -> None:
    scheduler = three()
    told(scheduler, at(30), TimerFired())
    told(scheduler, at(31), measured("e1"), measured("e2"))

    assert sorted(set(sent_to(scheduler, 25, 32))) == ["e1", "e2"]


def test_the_moment_of_silence_is_named_in_time() -> None:
    scheduler = three()

    assert scheduler.next_wakeup() == at(30)


def test_one_that_never_talked_is_not_missed() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=10), an_endpoint("e2", places=10))
    told(scheduler, at(0), measured("e1"))
    told(scheduler, at(29), measured("e1"))
    told(scheduler, at(50), TimerFired())

    assert sorted(set(sent_to(scheduler, 8, 50))) == ["e1", "e2"]


def test_an_engine_that_starts_anew_has_said_nothing() -> None:
    scheduler = three()
    told(scheduler, at(1), measured("e1", running=50), unreadied("e1"), readied("e1"))
    told(scheduler, at(20), measured("e2"), measured("e3"))
    told(scheduler, at(40), TimerFired())

    assert "e1" in sent_to(scheduler, 9, 40)


@pytest.mark.parametrize("name", ["e1", "nobody"])
def test_an_endpoint_that_has_left_is_not_listened_to(name: str) -> None:
    scheduler = a_scheduler(places=10)
    told(scheduler, at(0), measured(name), leaving("e1"))

    assert told(scheduler, at(1), measured(name)) == []
    assert scheduler.next_wakeup() is None


# The KV capacity that an engine reports


def many_sent(scheduler: Scheduler, moment: float = 1) -> int:
    return len(sent_to(scheduler, 20, moment))


def test_requests_that_exceed_the_reported_kv_capacity_wait_in_the_gateway() -> None:
    unknown, reported = a_scheduler(places=10), a_scheduler(places=10)
    told(reported, at(1), measured("e1", kv_tokens=1_000))
    told(reported, at(1), measured("e1", kv_tokens=1_000))

    assert many_sent(unknown) == 10
    assert 1 <= many_sent(reported) < 5


def test_configured_kv_capacity_outranks_the_reported_one() -> None:
    policy = a_policy(pools=(Pool(PoolName("p"), kv_tokens=1_000_000),))
    scheduler = a_scheduler(policy=policy, places=10)
    told(scheduler, at(1), measured("e1", kv_tokens=1_000))

    assert many_sent(scheduler) == 10


def test_reported_kv_capacity_is_forgotten_when_another_engine_may_stand_there() -> None:
    scheduler = a_scheduler(places=10)
    told(scheduler, at(1), measured("e1", kv_tokens=1_000), unreadied("e1"), readied("e1"))

    assert many_sent(scheduler, 60) == 10
