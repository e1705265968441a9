"""Requests that make engine parameters distinguishable: light load at first, then overload."""

from random import Random

from headgate.model.units import MILLISECOND, SECOND, Instant
from headgate.planning.engine_replay import RunRequest


def demands(count: int, *, seed: int = 1) -> list[RunRequest]:
    chance = Random(f"{seed} demands")
    found: list[RunRequest] = []
    at = SECOND
    for number in range(count):
        at += round(chance.expovariate(1) * (600 if number < count / 4 else 60) * MILLISECOND)
        found.append(RunRequest(Instant(at), round(chance.lognormvariate(6.3, 0.9)) + 8, chance.randint(2, 400)))
    return found
