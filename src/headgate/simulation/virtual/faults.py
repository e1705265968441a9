"""What goes wrong, when only its number and its bounds are given?

Kinds come in a fixed order, each fault with an engine, a moment and a length by chance. None shares an engine with
another one, or with what is known to befall it, as long as there is room: what befalls an engine that is down is lost,
and of two that overlap the first to end would end both. Places are drawn until one is free. Where that takes too long
one is drawn from all that is free, and where nothing is, they overlap.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from random import Random
from typing import Final, assert_never

from headgate.model.units import Duration, EndpointId, Instant
from headgate.simulation.virtual.scenario import Crash, Fail, Fault, Hang, Slow

_REDRAWS_MAX: Final = 100
"""How often another place is drawn where something happens already."""


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
class Place:
    """An engine, and the time in which it is out of order."""

    endpoint_id: EndpointId
    at: Instant
    lasts_ns: Duration


def place_of(fault: Fault) -> Place:
    match fault:
        case Crash():
            return Place(fault.endpoint_id, fault.at, fault.back_after_ns)
        case Hang() | Slow() | Fail():
            return Place(fault.endpoint_id, fault.at, fault.lasts_ns)
        case _:
            assert_never(fault)


def draw(
    faults: RandomFaults,
    endpoints: Sequence[EndpointId],
    *,
    span_ns: Duration,
    chance: Random,
    taken: Iterable[Place] = (),
) -> tuple[Fault, ...]:
    """In the order of time, before the end of the span. Places that are `taken` stay free of them."""
    diary = _Diary()
    for place in taken:
        diary.note(place)
    drawing = _Drawing(faults, endpoints, span_ns, diary, chance)
    drawn: list[Fault] = []
    for kind in ("crash",) * faults.crashes + ("hang",) * faults.hangs + ("slow",) * faults.slows:
        place = drawing.free_place()
        diary.note(place)
        match kind:
            case "crash":
                drawn.append(Crash(place.endpoint_id, place.at, place.lasts_ns))
            case "hang":
                drawn.append(Hang(place.endpoint_id, place.at, place.lasts_ns))
            case _:
                speed = chance.randint(faults.speed_min, faults.speed_max)
                drawn.append(Slow(place.endpoint_id, place.at, place.lasts_ns, speed))
    return tuple(sorted(drawn, key=lambda each: each.at))


class _Diary:
    """When is each engine out of order? From the first to the last nanosecond, in order and apart from each other."""

    def __init__(self) -> None:
        self._busy: dict[EndpointId, list[tuple[int, int]]] = {}

    def note(self, place: Place) -> None:
        first, last = place.at, place.at + place.lasts_ns
        apart: list[tuple[int, int]] = []
        for begins, ends in self._busy.get(place.endpoint_id, ()):
            if begins <= last and first <= ends:
                first, last = min(first, begins), max(last, ends)
            else:
                apart.append((begins, ends))
        self._busy[place.endpoint_id] = sorted([*apart, (first, last)])

    def is_free(self, place: Place) -> bool:
        busy = self._busy.get(place.endpoint_id, ())
        before = bisect_right(busy, place.at + place.lasts_ns, key=itemgetter(0))
        return before == 0 or busy[before - 1][1] < place.at

    def openings(self, endpoint_id: EndpointId, lasts_ns: Duration, span_ns: Duration) -> Iterator[range]:
        """At which moments of the span may something begin that lasts so long?"""
        start = 0
        for begins, ends in self._busy.get(endpoint_id, ()):
            yield range(start, min(begins - lasts_ns, span_ns))
            start = ends + 1
        yield range(start, span_ns)


@dataclass(frozen=True, slots=True)
class _Drawing:
    faults: RandomFaults
    endpoints: Sequence[EndpointId]
    span_ns: Duration
    diary: _Diary
    chance: Random

    def free_place(self) -> Place:
        place = self._place()
        for _ in range(_REDRAWS_MAX):
            if self.diary.is_free(place):
                return place
            place = self._place()
        return self._opening(place.lasts_ns) or self._opening(self.faults.lasts_ns_min) or place

    def _place(self) -> Place:
        return Place(
            self.endpoints[self.chance.randrange(len(self.endpoints))],
            Instant(self.chance.randrange(self.span_ns)),
            Duration(self.chance.randint(self.faults.lasts_ns_min, self.faults.lasts_ns_max)),
        )

    def _opening(self, lasts_ns: Duration) -> Place | None:
        """One of all free places for something that lasts so long."""
        found = [(each, some) for each in self.endpoints for some in self.diary.openings(each, lasts_ns, self.span_ns)]
        choices = sum(len(some) for _, some in found)
        if not choices:
            return None
        choice = self.chance.randrange(choices)
        for endpoint_id, some in found:
            if choice < len(some):
                return Place(endpoint_id, Instant(some[choice]), lasts_ns)
            choice -= len(some)
        raise AssertionError("a choice is one of the choices")
