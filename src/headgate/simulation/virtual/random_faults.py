"""Random faults, drawn from a count per type and limits on duration and speed.

Types are drawn in a fixed order. Each fault gets a random engine, start and duration. As long as there is room, faults
on one engine do not overlap each other or the faults in `taken`. This is because an engine that is down ignores further
faults, and when two faults overlap, the first to end would end both.

A draw is repeated until its period is free. After too many attempts, one of the remaining free periods is drawn. If no
period is free, faults overlap.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from random import Random
from typing import Final, assert_never

from headgate.model.units import Duration, EndpointId, Instant
from headgate.simulation.options import Crash, EngineSpec, Hang, RandomFaults, RequestErrors, ScenarioFault, Slowdown

_REDRAWS_MAX: Final = 100
"""Maximum number of redraws if the drawn period is not free."""


@dataclass(frozen=True, slots=True)
class FaultWindow:
    """An engine, and the period during which a fault affects it."""

    endpoint_id: EndpointId
    at: Instant
    duration_ns: Duration


def window_of(fault: ScenarioFault) -> FaultWindow:
    match fault:
        case Crash():
            return FaultWindow(fault.endpoint_id, fault.at, fault.recover_after_ns)
        case Hang() | Slowdown() | RequestErrors():
            return FaultWindow(fault.endpoint_id, fault.at, fault.duration_ns)
        case _:
            assert_never(fault)


def resolve_faults(
    faults: Sequence[ScenarioFault | RandomFaults], engines: Sequence[EngineSpec], span_ns: Duration, seed: int
) -> tuple[ScenarioFault, ...]:
    """Returns the given faults, followed by random ones that do not overlap with others or with an engine's start."""
    found = [each for each in faults if not isinstance(each, RandomFaults)]
    running = [each.id for each in engines if not each.standby]
    starting = [FaultWindow(each.id, Instant(0), _ready_at(each)) for each in engines if _ready_at(each)]
    for number, each in enumerate(faults):
        if isinstance(each, RandomFaults):
            taken = [*starting, *(window_of(fault) for fault in found)]
            chance = Random(f"{seed} faults {number}")
            found += draw_faults(each, running, span_ns=span_ns, rng=chance, occupied=taken)
    return tuple(found)


def _ready_at(spec: EngineSpec) -> Duration:
    return Duration(spec.starts_at + spec.cold_start_ns)


def draw_faults(
    faults: RandomFaults,
    endpoints: Sequence[EndpointId],
    *,
    span_ns: Duration,
    rng: Random,
    occupied: Iterable[FaultWindow] = (),
) -> tuple[ScenarioFault, ...]:
    """Returns faults in chronological order. All faults start within the span and avoid the periods in `occupied`."""
    diary = _FaultSchedule()
    for place in occupied:
        diary.add(place)
    drawing = _WindowSampler(faults, endpoints, span_ns, diary, rng)
    drawn: list[ScenarioFault] = []
    for kind in ("crash",) * faults.crashes + ("hang",) * faults.hangs + ("slow",) * faults.slowdowns:
        place = drawing.free_window()
        diary.add(place)
        match kind:
            case "crash":
                drawn.append(Crash(place.endpoint_id, place.at, place.duration_ns))
            case "hang":
                drawn.append(Hang(place.endpoint_id, place.at, place.duration_ns))
            case _:
                speed = rng.randint(faults.speed_min, faults.speed_max)
                drawn.append(Slowdown(place.endpoint_id, place.at, place.duration_ns, speed))
    return tuple(sorted(drawn, key=lambda each: each.at))


class _FaultSchedule:
    """Fault periods of each engine as (first, last) nanosecond, sorted and merged."""

    def __init__(self) -> None:
        self._busy: dict[EndpointId, list[tuple[int, int]]] = {}

    def add(self, place: FaultWindow) -> None:
        first, last = place.at, place.at + place.duration_ns
        apart: list[tuple[int, int]] = []
        for begins, ends in self._busy.get(place.endpoint_id, ()):
            if begins <= last and first <= ends:
                first, last = min(first, begins), max(last, ends)
            else:
                apart.append((begins, ends))
        self._busy[place.endpoint_id] = sorted([*apart, (first, last)])

    def is_free(self, place: FaultWindow) -> bool:
        busy = self._busy.get(place.endpoint_id, ())
        before = bisect_right(busy, place.at + place.duration_ns, key=itemgetter(0))
        return before == 0 or busy[before - 1][1] < place.at

    def free_starts(self, endpoint_id: EndpointId, lasts_ns: Duration, span_ns: Duration) -> Iterator[range]:
        """Yields the ranges of instants within the span at which a fault of this duration can start."""
        start = 0
        for begins, ends in self._busy.get(endpoint_id, ()):
            yield range(start, min(begins - lasts_ns, span_ns))
            start = ends + 1
        yield range(start, span_ns)


@dataclass(frozen=True, slots=True)
class _WindowSampler:
    faults: RandomFaults
    endpoints: Sequence[EndpointId]
    span_ns: Duration
    schedule: _FaultSchedule
    rng: Random

    def free_window(self) -> FaultWindow:
        place = self._random_window()
        for _ in range(_REDRAWS_MAX):
            if self.schedule.is_free(place):
                return place
            place = self._random_window()
        return self._window_in_gaps(place.duration_ns) or self._window_in_gaps(self.faults.duration_ns_min) or place

    def _random_window(self) -> FaultWindow:
        return FaultWindow(
            self.endpoints[self.rng.randrange(len(self.endpoints))],
            Instant(self.rng.randrange(self.span_ns)),
            Duration(self.rng.randint(self.faults.duration_ns_min, self.faults.duration_ns_max)),
        )

    def _window_in_gaps(self, lasts_ns: Duration) -> FaultWindow | None:
        """Draws from all free periods of this duration. None if there are none."""
        found = [
            (each, some) for each in self.endpoints for some in self.schedule.free_starts(each, lasts_ns, self.span_ns)
        ]
        choices = sum(len(some) for _, some in found)
        if not choices:
            return None
        choice = self.rng.randrange(choices)
        for endpoint_id, some in found:
            if choice < len(some):
                return FaultWindow(endpoint_id, Instant(some[choice]), lasts_ns)
            choice -= len(some)
        raise AssertionError("the choice is out of range")
