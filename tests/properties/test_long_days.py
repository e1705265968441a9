"""Property tests for the scheduler over long simulated days with many failures."""

from random import Random

import pytest

from headgate.core.commands import Command, Dispatch, End
from headgate.model.outcome import Outcome
from headgate.model.units import Duration
from testing.builds import IS_COMPILED, NEEDS_PURE_BUILD
from testing.event_generator import CROWDED, LARGE, PRESSED, SMALL, EventGenerator, EventMix
from tests.properties.model_host import ModelHost


def live_through(world: EventMix, seed: int, events: int) -> list[Command]:
    day = EventGenerator(world, Random(seed))
    host = ModelHost(world.policies[0], day.now)
    for each in world.policies[0].classes:
        if each.hedging:
            host.know_first_tokens(each.name, *(pool.name for pool in world.policies[0].pools))
    for event in day.opening():
        host.tell(event)
    ordered: list[Command] = []
    for _ in range(events):
        event, now = day.next(host.scheduler.next_wakeup())
        commands = host.tell(event, Duration(now - host.now))
        day.apply(event, commands)
        ordered += commands
    return ordered


WORLDS = {"large": LARGE, "pressed": PRESSED, "small": SMALL, "crowded": CROWDED}


@pytest.mark.skipif(IS_COMPILED, reason=NEEDS_PURE_BUILD)
@pytest.mark.parametrize(
    ("world", "seed", "events"),
    [("large", 0, 600), ("pressed", 0, 400), ("crowded", 0, 300), ("small", 0, 600), ("small", 1, 600)],
)
def test_scheduler_satisfies_all_properties_over_a_day_with_failures(world: str, seed: int, events: int) -> None:
    live_through(WORLDS[world], seed, events)


@pytest.mark.skipif(IS_COMPILED, reason=NEEDS_PURE_BUILD)
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
def test_scheduler_satisfies_all_properties_over_a_long_day(world: str, seed: int, events: int) -> None:
    live_through(WORLDS[world], seed, events)


@pytest.mark.skipif(IS_COMPILED, reason=NEEDS_PURE_BUILD)
def test_days_cover_all_kinds_of_dispatches_and_outcomes() -> None:
    ordered = [
        *live_through(PRESSED, 101, 600),
        *(command for seed in (103, 104, 105) for command in live_through(SMALL, seed, 500)),
    ]
    sent = [each for each in ordered if isinstance(each, Dispatch)]
    ended = {each.outcome for each in ordered if isinstance(each, End)}

    assert any(each.attempt > 1 and not each.hedge for each in sent), "no retry"
    assert any(each.hedge for each in sent), "no hedge"
    assert any(each.model is not None and not each.level for each in sent), "no fallback"
    assert any(each.level for each in sent), "no degraded request"
    assert any("prompt tokens cached" in each.reason for each in sent), "no prefix cache hit"
    assert ended >= {
        Outcome.COMPLETED,
        Outcome.QUEUE_FULL,
        Outcome.DEADLINE_INFEASIBLE,
        Outcome.SHED,
        Outcome.NO_ENDPOINTS,
        Outcome.QUEUE_TIMEOUT,
        Outcome.DEADLINE_EXCEEDED,
        Outcome.CANCELLED,
        Outcome.EVICTED,
        Outcome.ENGINE_ERROR,
        Outcome.ENGINE_TIMEOUT,
    }
