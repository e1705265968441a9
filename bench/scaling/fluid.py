"""Fluid model of a scaled fleet: attainment and GPU-hours for a given demand.

The model runs in steps of ten seconds instead of simulating the two hundred million requests in fourteen days. In each
step the ready endpoints have a capacity of C engine-seconds per second, and the demand is A with variance V, the
variance of one second's work. Unfinished work is buffered up to b = C·(T + H). T is the TTFT target. H is the work that
the endpoints' batches hold without delaying a first token, because later tokens are not yet due. Work that arrives when
the buffer is full cannot meet its target, so the gateway rejects it and it counts as missed. Such a buffer, filled at
rate A with variance V and drained at rate C, loses in the long run

    d / (exp(2·d·b/V) - 1)   engine-seconds per second,   d = C - A

This is a Brownian motion between two barriers. The loss is close to zero at low load, V/2b if demand equals capacity,
and A - C far above capacity. Waiting therefore grows before the endpoints are fully busy, more so with burstier clients
and smaller fleets. If bursts are large compared with the buffer, the formula would lose more than arrives. The model
therefore serves at least as much as a buffer that accepts one burst, or the part of it that fits, at a time:

    1 / (1/C + max(1, V/(A·b)) / A)   engine-seconds per second.

Long prompts are rejected more often than short ones, so the share of missed requests is G times the share of lost work.
Buffered work beyond C·H waits in the gateway. Each step uses the long-run result for its rate and fleet, because the
buffer fills or drains within one to three steps. H and G were fitted once, at request level, to a fixed fleet of three
endpoints at 0.86 to 1.4 times its capacity. `bench.scaling.model_check` checks them with other fleets and traces.

An endpoint costs GPU time from when it is ordered until it terminates. It starts serving after its cold start. A
released endpoint accepts no new requests and finishes those it has. Endpoints that are still starting are released
first, and immediately.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, expm1
from typing import Final, NamedTuple, Protocol

from bench.scaling.demand import STEP_S, TPOT_S, TPOT_SHARE, Step, Window
from headgate.model.engine_profile import EngineProfile

TTFT_S: Final = 2.0
HELD_S: Final = 1.4
"""H in the formulas above, in seconds."""
MISSED_SHARE: Final = 0.75
"""G in the formulas above."""
DRAIN_S: Final = 30
"""Time in seconds that a released endpoint needs to finish its requests. The endpoint still uses GPU time while it
drains.
"""

_EXPONENT_MAX: Final = 500.0


class FleetView(NamedTuple):
    """Metrics available to an autoscaler at the end of a step."""

    now_s: int
    ready: int
    warming: int
    draining: int
    work: float
    """Demand in engine-seconds per second, including rejected requests."""
    rate: float
    """Demand in requests per second, including rejected requests."""
    busy: float
    """Share of the ready endpoints' capacity that was used."""
    waiting_s: float
    """Work waiting in the gateway, in engine-seconds."""
    waiting: float
    """Number of requests waiting in the gateway."""
    running: float
    """Number of requests running on endpoints."""
    kv_tokens: float
    """KV cache usage of the requests running on endpoints, in tokens."""
    starting_s: int = 0
    """Age of the oldest start in progress, in seconds."""
    missed: float = 0.0
    """Share of the requests in the step that missed their target."""


class Scaler(Protocol):
    def desired(self, view: FleetView) -> int:
        """Desired replica count, including starting replicas."""
        ...

    def on_endpoint_ready(self, took_s: int) -> None:
        """Record that an endpoint became ready."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    attainment: float
    """Share of all requests that met their target."""
    gpu_hours: float
    starts: int
    ready: Sequence[int] = field(repr=False)
    """Number of ready endpoints in each step."""


class SteadyState(NamedTuple):
    """Long-run result for one demand on one fleet."""

    lost: float
    """Share of the arriving work that is lost."""
    waiting_s: float
    """Work waiting in the gateway, in engine-seconds."""

    @property
    def missed(self) -> float:
        """Share of the arriving requests that miss their target."""
        return MISSED_SHARE * self.lost if self.lost < 1 else 1.0


def steady_state(window: Window, endpoints: int, *, ttft_s: float = TTFT_S, held_s: float = HELD_S) -> SteadyState:
    asked, variance = window.work, window.variance / STEP_S
    if endpoints <= 0:
        return SteadyState(1.0, 0.0)
    can = float(endpoints)
    spare, held, store = can - asked, can * held_s, can * (ttft_s + held_s)
    if variance <= 0:
        return SteadyState(max(0.0, -spare) / asked, 0.0 if spare >= 0 else can * ttft_s)
    fall = 2 * spare / variance
    if abs(fall * store) < 1e-6:
        waits = store - held
        return SteadyState(variance / (2 * store) / asked, waits * waits / (2 * store))
    grown = fall * store
    lost = 0.0 if grown > _EXPONENT_MAX else -spare if grown < -_EXPONENT_MAX else spare / expm1(grown)
    done = 1 / (1 / can + max(1.0, variance / (asked * store)) / asked)
    return SteadyState(min(lost, asked - done) / asked, _waiting(fall, held=held, room=store - held))


def _waiting(fall: float, *, held: float, room: float) -> float:
    """Mean work above `held`, for a buffer level distributed as exp(-fall·y) between 0 and `held + room`."""
    if fall < 0:
        # Measured from the upper barrier to avoid large exponents.
        rise = -fall
        if rise * room > _EXPONENT_MAX:
            return room
        below = exp(-rise * room)
        return (room - (1 - below) / rise) / -expm1(-rise * (held + room))
    if fall * held > _EXPONENT_MAX:
        return 0.0
    beyond = exp(-fall * room) if fall * room < _EXPONENT_MAX else 0.0
    return exp(-fall * held) * ((1 - beyond) / fall - room * beyond) / -expm1(-fall * (held + room))


class Queue:
    """Cache of the long-run results by window and fleet size."""

    def __init__(self, profile: EngineProfile) -> None:
        self._profile = profile
        self._known: dict[tuple[int, int], tuple[SteadyState, float]] = {}

    def at(self, window: Window, endpoints: int) -> tuple[SteadyState, float]:
        """Long-run result and number of running requests."""
        key = (id(window), endpoints)
        found = self._known.get(key)
        if found is None:
            these = steady_state(window, endpoints)
            found = self._known[key] = (these, self._running(window, endpoints, 1 - these.lost))
        return found

    def _running(self, window: Window, endpoints: int, served: float) -> float:
        """Running requests. A batch is rate·output·a/(1 - rate·own) by Little's law, up to that of a full endpoint."""
        if not endpoints:
            return 0.0
        rate = window.rate * served / endpoints
        fixed_s = self._profile.step_ps / 1e12
        left = max(fixed_s / (TPOT_SHARE * TPOT_S), 1 - rate * window.cost.own_s)
        batch = rate * window.cost.output_tokens * fixed_s / left
        return endpoints * min(batch, self._profile.sequences_max)


class Fleet:
    """Number of endpoints in each state, and their total cost."""

    def __init__(self, ready: int, *, cold_start_s: int, drain_s: int = DRAIN_S) -> None:
        self.ready = ready
        self.warming: deque[int] = deque()
        """Times at which the starting endpoints become ready, in order."""
        self.draining: deque[int] = deque()
        """Times at which the draining endpoints terminate, in order."""
        self.starts = 0
        self.paid_s = 0
        self._cold_start_s = cold_start_s
        self._drain_s = drain_s

    def advance_to(self, now_s: int) -> int:
        """Advance to `now_s` and return the number of endpoints that became ready."""
        came = 0
        while self.warming and self.warming[0] <= now_s:
            self.warming.popleft()
            came += 1
        while self.draining and self.draining[0] <= now_s:
            self.draining.popleft()
        self.ready += came
        return came

    def starting_s(self, now_s: int) -> int:
        """Age of the oldest start in progress, in seconds."""
        return now_s - (self.warming[0] - self._cold_start_s) if self.warming else 0

    def pay(self, seconds: int) -> None:
        self.paid_s += seconds * (self.ready + len(self.warming) + len(self.draining))

    def scale_to(self, wanted: int, now_s: int) -> None:
        more = wanted - self.ready - len(self.warming)
        if more > 0:
            self.starts += more
            self.warming.extend([now_s + self._cold_start_s] * more)
        while more < 0 and self.warming:
            self.warming.pop()
            more += 1
        if more < 0:
            self.ready += more
            self.draining.extend([now_s + self._drain_s] * -more)


def run(
    steps: Sequence[Step],
    contender: Scaler,
    profile: EngineProfile,
    *,
    first: int,
    endpoints_max: int,
    cold_start_s: int,
) -> Outcome:
    """Run all steps. The fleet starts with `first` ready endpoints and never has more than `endpoints_max`."""
    fleet, queue = Fleet(first, cold_start_s=cold_start_s), Queue(profile)
    came = missed = 0.0
    course: list[int] = []
    for number, step in enumerate(steps):
        now_s = number * STEP_S
        for _ in range(fleet.advance_to(now_s)):
            contender.on_endpoint_ready(cold_start_s)
        window, ready = step.window, fleet.ready
        these, running = queue.at(window, ready)
        came += window.rate
        missed += window.rate * these.missed
        fleet.pay(STEP_S)
        course.append(ready)
        view = FleetView(
            now_s + STEP_S,
            ready,
            len(fleet.warming),
            len(fleet.draining),
            step.work,
            step.rate,
            min(1.0, step.work * (1 - these.lost) / ready) if ready else 0.0,
            these.waiting_s,
            these.waiting_s / window.cost.mean_s,
            running,
            running * window.cost.tokens,
            fleet.starting_s(now_s + STEP_S),
            these.missed,
        )
        fleet.scale_to(min(endpoints_max, max(0, contender.desired(view))), now_s + STEP_S)
    return Outcome(1 - missed / came, fleet.paid_s / 3600, fleet.starts, course)
