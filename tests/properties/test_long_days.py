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


@pytest.mark.parametrize("seed", range(2))
def test_a_day_with_many_of_everything(seed: int) -> None:
    live_through(LARGE, seed, 2_500)


@pytest.mark.parametrize("seed", range(1))
def test_a_day_on_which_much_is_given_up(seed: int) -> None:
    live_through(PRESSED, seed, 2_000)


@pytest.mark.parametrize("seed", range(12))
def test_a_day_on_which_the_same_few_meet_in_all_ways(seed: int) -> None:
    live_through(SMALL, seed, 1_500)


@pytest.mark.parametrize("seed", range(3))
def test_a_day_on_which_the_same_few_wait_all_day_long(seed: int) -> None:
    live_through(CROWDED, seed, 1_200)


def test_the_days_are_worth_living() -> None:
    """Together they have all that a request may meet."""
    ordered = [
        *live_through(LARGE, 100, 1_500),
        *live_through(PRESSED, 101, 1_000),
        *(command for seed in range(102, 106) for command in live_through(SMALL, seed, 1_000)),
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
