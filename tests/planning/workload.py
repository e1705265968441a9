"""Which requests tell an engine's parameters apart? Quiet at first, then more than it can take."""

from random import Random

from headgate.model.units import MILLISECOND, SECOND, Instant
from headgate.planning.answers import Demand


def demands(count: int, *, seed: int = 1) -> list[Demand]:
    chance = Random(f"{seed} demands")
    found: list[Demand] = []
    at = SECOND
    for number in range(count):
        at += round(chance.expovariate(1) * (600 if number < count / 4 else 60) * MILLISECOND)
        found.append(Demand(Instant(at), round(chance.lognormvariate(6.3, 0.9)) + 8, chance.randint(2, 400)))
    return found
