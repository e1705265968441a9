"""How many, how long: what has been counted since this process started?

Plain integers, raised where a decision is observed; making a page of them is somebody else's
work. Every name under which something is counted comes from a closed set: the classes and pools
of the present policy, the outcomes, the endings. What carries another name, such as a class that
a reload took away while its requests ran, counts as `other`, so no traffic and no number of
reloads can grow what is kept here.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from headgate.core.commands import Command, Dispatch, Eject, End, Hold
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    EndpointJoined,
    EndpointLeaving,
    EndpointReadied,
    EndpointUnreadied,
    Event,
    FirstToken,
    PolicyChanged,
    Progressed,
    RequestArrived,
)
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy
from headgate.model.ticket import Ticket
from headgate.model.units import SECOND, Duration, EndpointId, Instant, PoolName, RequestId
from headgate.ports.fleet import Phase

NO_CLASS = "none"
"""The class of requests that were refused before they had one."""
OTHER = "other"

# Each request is remembered until it ends. More than one process can hold at once.
REQUESTS_MAX = 262_144

LATENCY_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
SIZE_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Of batches, in inputs."""
_LATENCY_BOUNDS_NS = tuple(int(bound * SECOND) for bound in LATENCY_BOUNDS_S)

_Meter = TypeVar("_Meter")


class Histogram:
    """How often a value fell between each bound and the one before; the last has no bound. By default a duration."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[int, ...] = _LATENCY_BOUNDS_NS) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0

    def add(self, value: int, times: int = 1) -> None:
        self.counts[bisect_left(self._bounds, value)] += times
        self.total += value * times


class ClassMeter:
    __slots__ = ("between_tokens", "output_tokens", "prompt_tokens", "requests", "to_first_token", "total", "wait")

    def __init__(self) -> None:
        self.requests = dict.fromkeys(Outcome, 0)
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.wait = Histogram()
        """In our queue, before the first attempt."""
        self.to_first_token = Histogram()
        """From arrival to the first token of a stream."""
        self.between_tokens = Histogram()
        """Each token after the first, by the mean of the report it came in."""
        self.total = Histogram()
        """From arrival to the end of requests that completed."""

    def figures(self) -> dict[str, object]:
        return {
            "ended": {outcome.value: count for outcome, count in self.requests.items() if count},
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "queue_wait": self.wait.counts,
            "time_to_first_token": self.to_first_token.counts,
            "inter_token_latency": self.between_tokens.counts,
            "duration": self.total.counts,
        }


class PoolMeter:
    __slots__ = (
        "batch_size",
        "batch_wait",
        "drains",
        "ejections",
        "endings",
        "hedges",
        "retries",
        "starts",
        "warmings",
    )

    def __init__(self) -> None:
        self.batch_size = Histogram(SIZE_BOUNDS)
        """Inputs in each call to an engine, where requests are asked together."""
        self.batch_wait = Histogram()
        """How long each request waited for company."""
        self.starts = {phase: Histogram() for phase in Phase}
        """How long endpoints were in each phase of their start."""
        self.warmings = Histogram()
        """How long endpoints were known before they served, whoever started them."""
        self.drains = Histogram()
        """How long endpoints that were given up still had attempts."""
        self.endings = dict.fromkeys(AttemptEnding, 0)
        self.retries = 0
        self.hedges = 0
        self.ejections = 0


class _Open:
    """What is known of a request until it and its last attempt have ended."""

    __slots__ = ("arrived", "class_meter", "ended", "heard", "hedge", "pool_meter", "running", "stream")

    def __init__(self, arrived: Instant, class_meter: ClassMeter, pool_meter: PoolMeter, *, stream: bool) -> None:
        self.arrived = arrived
        self.stream = stream
        self.class_meter = class_meter
        self.pool_meter = pool_meter
        self.heard: Instant | None = None
        """When its tokens were last reported."""
        self.running = 0
        """How many attempts are under way."""
        self.hedge: tuple[int, PoolMeter] | None = None
        """The number of the attempt that was made beside another, and its pool."""
        self.ended = False


class Meters:
    """An observer that counts."""

    def __init__(self) -> None:
        self.classes = {name: ClassMeter() for name in (NO_CLASS, OTHER)}
        self.pools = {OTHER: PoolMeter()}
        self.held: dict[tuple[str, str], int] = {}
        """How many were held for an endpoint to start, by class and pool."""
        self._open: dict[RequestId, _Open] = {}
        self._pool_of: dict[EndpointId, PoolName] = {}
        self._warming_since: dict[EndpointId, Instant] = {}

    @property
    def open_requests(self) -> int:
        return len(self._open)

    def turned_away(self, outcome: Outcome) -> None:
        """Counts a request that ended at the door, before the scheduler heard of it."""
        self.classes[NO_CLASS].requests[outcome] += 1

    def batched(self, pool: PoolName, size: int, waits_ns: Sequence[int]) -> None:
        """Counts a call of so many inputs; the requests whose first call it is waited for so long."""
        meter = self._pool(pool)
        meter.batch_size.add(size)
        for wait_ns in waits_ns:
            meter.batch_wait.add(wait_ns)

    def started(self, pool: PoolName, took_ns: Mapping[Phase, Duration]) -> None:
        """Counts the start of an endpoint, by its phases."""
        starts = self._pool(pool).starts
        for phase, length in took_ns.items():
            starts[phase].add(length)

    def drained(self, pool: PoolName, took_ns: Duration) -> None:
        self._pool(pool).drains.add(took_ns)

    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        self._happened(event, now)
        for command in commands:
            match command:
                case Dispatch():
                    self._dispatched(command)
                case End():
                    self._ended(command, now)
                case Hold(_, pool, service_class):
                    if (service_class, pool) in self.held:
                        self.held[service_class, pool] += 1
                case Eject(endpoint_id):
                    self._pool(self._pool_of.get(endpoint_id)).ejections += 1
                case _:
                    pass

    def _happened(self, event: Event, now: Instant) -> None:
        match event:
            case RequestArrived(ticket):
                self._arrived(ticket, now)
            case FirstToken(request_id):
                self._first_token(request_id, now)
            case Progressed():
                self._progress(event, now)
            case AttemptEnded():
                self._attempt_ended(event)
            case PolicyChanged(policy):
                self._change_policy(policy)
            case EndpointJoined(endpoint):
                if endpoint.id not in self._pool_of:
                    self._warming_since[endpoint.id] = now
                self._pool_of[endpoint.id] = endpoint.pool
            case EndpointUnreadied(endpoint_id):
                self._unreadied(endpoint_id, now)
            case EndpointReadied(endpoint_id):
                self._readied(endpoint_id, now)
            case EndpointLeaving(endpoint_id):
                self._pool_of.pop(endpoint_id, None)
                self._warming_since.pop(endpoint_id, None)
            case _:
                pass

    def _unreadied(self, endpoint_id: EndpointId, now: Instant) -> None:
        if endpoint_id in self._pool_of:
            self._warming_since.setdefault(endpoint_id, now)

    def _readied(self, endpoint_id: EndpointId, now: Instant) -> None:
        if (since := self._warming_since.pop(endpoint_id, None)) is not None:
            self._pool(self._pool_of.get(endpoint_id)).warmings.add(Duration(now - since))

    def _arrived(self, ticket: Ticket, now: Instant) -> None:
        if len(self._open) < REQUESTS_MAX:
            other = self.classes[OTHER], self.pools[OTHER]
            self._open[ticket.request_id] = _Open(now, *other, stream=ticket.stream)

    def _dispatched(self, command: Dispatch) -> None:
        class_meter, pool_meter = self._class(command.service_class), self._pool(command.pool)
        if command.hedge:
            pool_meter.hedges += 1
        elif command.attempt == 1:
            class_meter.wait.add(command.waited_ns)
        else:
            pool_meter.retries += 1
        if (found := self._open.get(command.request_id)) is not None:
            found.running += 1
            if command.hedge:
                found.hedge = (command.attempt, pool_meter)
            else:
                found.class_meter, found.pool_meter = class_meter, pool_meter

    def _first_token(self, request_id: RequestId, now: Instant) -> None:
        found = self._open.get(request_id)
        if found is not None and found.stream:
            found.class_meter.to_first_token.add(now - found.arrived)

    def _progress(self, event: Progressed, now: Instant) -> None:
        for report in event.attempts:
            found = self._open.get(report.request_id)
            if found is None or report.tokens < 1:
                continue
            if found.heard is not None:
                found.class_meter.between_tokens.add((now - found.heard) // report.tokens, report.tokens)
            found.heard = now

    def _attempt_ended(self, event: AttemptEnded) -> None:
        found = self._open.get(event.request_id)
        class_meter = found.class_meter if found else self.classes[OTHER]
        pool_meter = found.pool_meter if found else self.pools[OTHER]
        if found is not None and found.hedge is not None and found.hedge[0] == event.attempt:
            pool_meter = found.hedge[1]
        pool_meter.endings[event.ending] += 1
        if event.usage is not None:
            # A counter may never fall, whatever an engine claims.
            class_meter.prompt_tokens += max(0, event.usage.prompt_tokens)
            class_meter.output_tokens += max(0, event.usage.output_tokens)
        if found is not None:
            found.running -= 1
            self._forget_if_over(event.request_id, found)

    def _ended(self, command: End, now: Instant) -> None:
        meter = self._class(command.service_class)
        meter.requests[command.outcome] += 1
        found = self._open.get(command.request_id)
        if found is None:
            return
        if command.outcome is Outcome.COMPLETED:
            meter.total.add(Duration(now - found.arrived))
        found.ended = True
        self._forget_if_over(command.request_id, found)

    def _forget_if_over(self, request_id: RequestId, found: _Open) -> None:
        if found.ended and not found.running:
            del self._open[request_id]

    def figures(self) -> dict[str, object]:
        """What has been counted, as plain data; whoever wants rates or percentiles compares two of these."""
        return {
            "latency_bounds_s": LATENCY_BOUNDS_S,
            "classes": {name: meter.figures() for name, meter in self.classes.items()},
            "pools": {
                name: {"retries": meter.retries, "hedges": meter.hedges, "ejections": meter.ejections}
                for name, meter in self.pools.items()
            },
        }

    def _class(self, name: str | None) -> ClassMeter:
        return self.classes.get(NO_CLASS if name is None else name) or self.classes[OTHER]

    def _pool(self, name: str | None) -> PoolMeter:
        return self.pools.get(OTHER if name is None else name) or self.pools[OTHER]

    def _change_policy(self, policy: Policy) -> None:
        _keep(self.classes, (NO_CLASS, OTHER, *(each.name for each in policy.classes)), ClassMeter)
        _keep(self.pools, (OTHER, *(each.name for each in policy.pools)), PoolMeter)
        self.held = _held(self.held, policy)


def _held(counted: Mapping[tuple[str, str], int], policy: Policy) -> dict[tuple[str, str], int]:
    """Every class that may be held at every pool that may be empty is there; what is counted of others is dropped."""
    return {
        (each.name, pool.name): counted.get((each.name, pool.name), 0)
        for each in policy.classes
        for pool in policy.pools
        if each.start_wait_ns is not None and pool.hold_max and (not each.pools or pool.name in each.pools)
    }


def _keep(meters: dict[str, _Meter], names: Sequence[str], new: Callable[[], _Meter]) -> None:
    """Leaves a meter for each of the names and no other; those that stay keep what they counted."""
    for gone in [name for name in meters if name not in names]:
        del meters[gone]
    for name in names:
        if name not in meters:
            meters[name] = new()
