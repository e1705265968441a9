"""Do the promises of the scheduler hold over long days, with much trouble in them?"""

from random import Random

import pytest

from headgate.model.units import Duration
from tests.properties.model_host import ModelHost
from tests.support.days import LARGE, SMALL, Day, World


def live_through(world: World, seed: int, events: int) -> None:
    day = Day(world, Random(seed))
    host = ModelHost(world.policies[0], day.now)
    for event in day.opening():
        host.tell(event)
    for _ in range(events):
        event, now = day.next(host.scheduler.next_wakeup())
        day.obey(event, host.tell(event, Duration(now - host.now)))


@pytest.mark.parametrize("seed", range(4))
def test_a_day_with_many_of_everything(seed: int) -> None:
    live_through(LARGE, seed, 3_000)


@pytest.mark.parametrize("seed", range(20))
def test_a_day_on_which_the_same_few_meet_in_all_ways(seed: int) -> None:
    live_through(SMALL, seed, 1_500)
