"""Do the promises of the scheduler hold over long days, with much trouble in them?"""

from random import Random

import pytest

from headgate.core.commands import Command, Dispatch, End
from headgate.model.outcome import Outcome
from headgate.model.units import Duration
from testing.days import CROWDED, LARGE, PRESSED, SMALL, Day, World
from tests.properties.model_host import ModelHost


def live_through(world: World, seed: int, events: int) -> list[Command]:
    day = Day(world, Random(seed))
    host = ModelHost(world.policies[0], day.now)
    for each in world.policies[0].classes:
        if each.hedges:
            host.know_first_tokens(each.name, *(pool.name for pool in world.policies[0].pools))
    for event in day.opening():
        host.tell(event)
    ordered: list[Command] = []
    for _ in range(events):
        event, now = day.next(host.scheduler.next_wakeup())
        commands = host.tell(event, Duration(now - host.now))
        day.obey(event, commands)
        ordered += commands
    return ordered


WORLDS = {"large": LARGE, "pressed": PRESSED, "small": SMALL, "crowded": CROWDED}


@pytest.mark.parametrize(
    ("world", "seed", "events"),
    [("large", 0, 600), ("pressed", 0, 400), ("crowded", 0, 300), ("small", 0, 600), ("small", 1, 600)],
)
def test_scheduler_keeps_its_promises_over_a_troubled_day(world: str, seed: int, events: int) -> None:
    live_through(WORLDS[world], seed, events)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("world", "seed", "events"),
    [
        *(("large", seed, 2_500) for seed in range(2)),
        ("pressed", 0, 2_000),
        *(("crowded", seed, 1_200) for seed in range(3)),
        *(("small", seed, 1_500) for seed in range(12)),
    ],
)
def test_scheduler_keeps_its_promises_over_a_long_day(world: str, seed: int, events: int) -> None:
    live_through(WORLDS[world], seed, events)


def test_the_days_together_have_all_that_a_request_may_meet() -> None:
    ordered = [
        *live_through(PRESSED, 101, 600),
        *(command for seed in (103, 104, 105) for command in live_through(SMALL, seed, 500)),
    ]
    sent = [each for each in ordered if isinstance(each, Dispatch)]
    ended = {each.outcome for each in ordered if isinstance(each, End)}

    assert any(each.attempt > 1 and not each.hedge for each in sent), "nothing was tried again"
    assert any(each.hedge for each in sent), "nothing was hedged"
    assert any(each.model is not None and not each.level for each in sent), "nothing fell back"
    assert any(each.level for each in sent), "nothing was given up"
    assert any("it holds about" in each.reason for each in sent), "nothing was found in a cache"
    assert ended >= {
        Outcome.COMPLETED,
        Outcome.QUEUE_FULL,
        Outcome.UNREACHABLE,
        Outcome.SHED,
        Outcome.NO_ENDPOINTS,
        Outcome.EXPIRED,
        Outcome.TOO_LATE,
        Outcome.CANCELLED,
        Outcome.EVICTED,
        Outcome.ENGINE_FAILED,
        Outcome.ENGINE_SILENT,
    }
