"""What becomes of a demand, and what does it cost, if somebody scales a fleet?

A fluid model at steps of ten seconds, in place of the two hundred million requests of fourteen days. In each step the
ready endpoints can do C engine-seconds a second and A of them are asked for; what is asked varies by V, the variance of
one second's work. Work that is not done yet lies before the endpoints: up to b = C·(T + H), where T is the target of
the first token and H is what the endpoints' batches take up without anybody waiting for a first token, for the tokens
after the first have time. What comes when so much is there cannot make its target: the gateway refuses it, and it is
missed. Such a store, filled at rate A with variance V and emptied at rate C, loses in the long run

    d / (exp(2·d·b/V) - 1)   engine-seconds a second,   d = C - A

(a Brownian motion between two walls): nothing much at a low load, V/2b where demand is just what can be done, and A - C
far above that. So waiting grows before the endpoints are busy all the time, the more so the burstier the clients and
the smaller the fleet. Where work comes in bursts that are large before the store, the formula would lose more than
comes; but no less is done than by a store that takes one burst, or what it holds of it, at a time:

    1 / (1/C + max(1, V/(A·b)) / A)   engine-seconds a second.

What is refused are rather long prompts than short ones, so of the requests only a share G of it is missed. Of the
store, what exceeds C·H waits in the gateway. Every step is taken as the long run of its rate and its fleet: the store
fills or empties within one to three of them. H and G were fitted once, to a fixed fleet of three endpoints between 0.86
and 1.4 times what it can do, request by request; `bench.scaling.hour` holds them against other fleets and traces.

An endpoint is paid for from its order to its end. It serves after its cold start, and when it is given back it takes
nothing new and ends what it has. Those that are still starting are given back first, and at once.
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
"""H."""
MISSED_SHARE: Final = 0.75
"""G."""
DRAIN_S: Final = 30
"""How long an endpoint that is given back still has something to end, and is paid for."""

_EXPONENT_MAX: Final = 500.0


class View(NamedTuple):
    """What whoever scales may look at, at the end of a step."""

    now_s: int
    ready: int
    warming: int
    draining: int
    work: float
    """Engine-seconds that were asked for in each second of the step, also of what was refused."""
    rate: float
    """Requests a second likewise."""
    busy: float
    """Which part of what the ready endpoints can do was done."""
    waiting_s: float
    """Engine-seconds that wait in the gateway."""
    waiting: float
    """Requests that do."""
    running: float
    """Requests at endpoints."""
    kv_tokens: float
    """What these hold of the KV cache."""
    starting_s: int = 0
    """Age of the oldest start under way."""
    missed: float = 0.0
    """Share of the requests of the step that missed their target."""


class Contender(Protocol):
    def wanted(self, view: View) -> int:
        """How many endpoints, ready and starting together."""
        ...

    def started(self, took_s: int) -> None:
        """An endpoint has become ready."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    attainment: float
    """Of all requests, those that were not missed."""
    gpu_hours: float
    starts: int
    ready: Sequence[int] = field(repr=False)
    """In each step."""


class Chances(NamedTuple):
    """Of one rate and one fleet, in the long run."""

    lost: float
    """Which share of the work that comes."""
    waiting_s: float
    """Engine-seconds in the gateway."""

    @property
    def missed(self) -> float:
        """Which share of the requests that come."""
        return MISSED_SHARE * self.lost if self.lost < 1 else 1.0


def chances(window: Window, endpoints: int, *, ttft_s: float = TTFT_S, held_s: float = HELD_S) -> Chances:
    asked, variance = window.work, window.variance / STEP_S
    if endpoints <= 0:
        return Chances(1.0, 0.0)
    can = float(endpoints)
    spare, held, store = can - asked, can * held_s, can * (ttft_s + held_s)
    if variance <= 0:
        return Chances(max(0.0, -spare) / asked, 0.0 if spare >= 0 else can * ttft_s)
    fall = 2 * spare / variance
    if abs(fall * store) < 1e-6:
        waits = store - held
        return Chances(variance / (2 * store) / asked, waits * waits / (2 * store))
    grown = fall * store
    lost = 0.0 if grown > _EXPONENT_MAX else -spare if grown < -_EXPONENT_MAX else spare / expm1(grown)
    done = 1 / (1 / can + max(1.0, variance / (asked * store)) / asked)
    return Chances(min(lost, asked - done) / asked, _waiting(fall, held=held, room=store - held))


def _waiting(fall: float, *, held: float, room: float) -> float:
    """The mean of what exceeds `held`, where the store is distributed as exp(-fall·y) from nothing to `held + room`."""
    if fall < 0:
        # Seen from the upper wall, so that no exponent is great.
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
    """The long run of every window at every size of the fleet, each reckoned once."""

    def __init__(self, profile: EngineProfile) -> None:
        self._profile = profile
        self._known: dict[tuple[int, int], tuple[Chances, float]] = {}

    def at(self, window: Window, endpoints: int) -> tuple[Chances, float]:
        """Chances, and how many requests are running."""
        key = (id(window), endpoints)
        found = self._known.get(key)
        if found is None:
            these = chances(window, endpoints)
            found = self._known[key] = (these, self._running(window, endpoints, 1 - these.lost))
        return found

    def _running(self, window: Window, endpoints: int, served: float) -> float:
        """A batch is rate·output·a/(1 - rate·own) by Little's law, and no greater than in a full endpoint."""
        if not endpoints:
            return 0.0
        rate = window.rate * served / endpoints
        fixed_s = self._profile.step_ps / 1e12
        left = max(fixed_s / (TPOT_SHARE * TPOT_S), 1 - rate * window.cost.own_s)
        batch = rate * window.cost.output_tokens * fixed_s / left
        return endpoints * min(batch, self._profile.sequences_max)


class Fleet:
    """So many endpoints in each of their states, and what they have cost."""

    def __init__(self, ready: int, *, cold_start_s: int, drain_s: int = DRAIN_S) -> None:
        self.ready = ready
        self.warming: deque[int] = deque()
        """When each of them is ready, in order."""
        self.draining: deque[int] = deque()
        """When each of them is gone."""
        self.starts = 0
        self.paid_s = 0
        self._cold_start_s = cold_start_s
        self._drain_s = drain_s

    def pass_to(self, now_s: int) -> int:
        """How many have become ready."""
        came = 0
        while self.warming and self.warming[0] <= now_s:
            self.warming.popleft()
            came += 1
        while self.draining and self.draining[0] <= now_s:
            self.draining.popleft()
        self.ready += came
        return came

    def starting_s(self, now_s: int) -> int:
        """Age of the oldest start under way."""
        return now_s - (self.warming[0] - self._cold_start_s) if self.warming else 0

    def pay(self, seconds: int) -> None:
        self.paid_s += seconds * (self.ready + len(self.warming) + len(self.draining))

    def become(self, wanted: int, now_s: int) -> None:
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
    contender: Contender,
    profile: EngineProfile,
    *,
    first: int,
    endpoints_max: int,
    cold_start_s: int,
) -> Outcome:
    """The fleet begins with so many that are ready, and is never given more than the most."""
    fleet, queue = Fleet(first, cold_start_s=cold_start_s), Queue(profile)
    came = missed = 0.0
    course: list[int] = []
    for number, step in enumerate(steps):
        now_s = number * STEP_S
        for _ in range(fleet.pass_to(now_s)):
            contender.started(cold_start_s)
        window, ready = step.window, fleet.ready
        these, running = queue.at(window, ready)
        came += window.rate
        missed += window.rate * these.missed
        fleet.pay(STEP_S)
        course.append(ready)
        view = View(
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
        fleet.become(min(endpoints_max, max(0, contender.wanted(view))), now_s + STEP_S)
    return Outcome(1 - missed / came, fleet.paid_s / 3600, fleet.starts, course)
