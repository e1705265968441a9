"""What goes wrong, when only its number and its bounds are given?

Kinds come in a fixed order, each fault with an engine, a moment and a length by chance. No two share an engine at a
time as long as there is room for all: what befalls an engine that is down is lost, and of two that overlap the first to
end would end both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from headgate.model.units import Duration, EndpointId, Instant
from headgate.simulation.virtual.scenario import Crash, Fault, Hang, Slow

_REDRAWS_MAX: Final = 100
"""How often another place is looked for where something happens already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFaults:
    crashes: int
    hangs: int
    slows: int
    lasts_ns_min: Duration
    lasts_ns_max: Duration
    speed_min: int
    """Of those that go slow, in thousandths."""
    speed_max: int


@dataclass(frozen=True, slots=True)
class _Place:
    endpoint_id: EndpointId
    at: Instant
    lasts_ns: Duration

    def overlaps(self, other: "_Place") -> bool:
        return (
            self.endpoint_id == other.endpoint_id
            and self.at <= other.at + other.lasts_ns
            and other.at <= self.at + self.lasts_ns
        )


def draw(
    faults: RandomFaults, endpoints: Sequence[EndpointId], *, span_ns: Duration, chance: Random
) -> tuple[Fault, ...]:
    """In the order of time."""
    taken: list[_Place] = []
    drawn: list[Fault] = []
    for kind in ("crash",) * faults.crashes + ("hang",) * faults.hangs + ("slow",) * faults.slows:
        place = _free_place(faults, endpoints, span_ns, taken, chance)
        taken.append(place)
        match kind:
            case "crash":
                drawn.append(Crash(place.endpoint_id, place.at, place.lasts_ns))
            case "hang":
                drawn.append(Hang(place.endpoint_id, place.at, place.lasts_ns))
            case _:
                speed = chance.randint(faults.speed_min, faults.speed_max)
                drawn.append(Slow(place.endpoint_id, place.at, place.lasts_ns, speed))
    return tuple(sorted(drawn, key=lambda each: each.at))


def _free_place(
    faults: RandomFaults, endpoints: Sequence[EndpointId], span_ns: Duration, taken: list[_Place], chance: Random
) -> _Place:
    place = _place(faults, endpoints, span_ns, chance)
    for _ in range(_REDRAWS_MAX):
        if not any(place.overlaps(each) for each in taken):
            break
        place = _place(faults, endpoints, span_ns, chance)
    return place


def _place(faults: RandomFaults, endpoints: Sequence[EndpointId], span_ns: Duration, chance: Random) -> _Place:
    return _Place(
        endpoints[chance.randrange(len(endpoints))],
        Instant(chance.randint(0, span_ns)),
        Duration(chance.randint(faults.lasts_ns_min, faults.lasts_ns_max)),
    )
