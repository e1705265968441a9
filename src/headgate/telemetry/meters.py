"""How many, how long: what has been counted since this process started?

Plain integers, raised where a decision is observed; making a page of them is somebody else's work. Every name under
which something is counted comes from a closed set: the classes and pools of the present policy, a bounded number of its
tenants, the outcomes, the endings. What carries another name, such as a class that a reload took away while its
requests ran, counts as `other`, so no traffic and no number of reloads or tenants can grow what is kept here.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from heapq import nlargest
from typing import TypeVar

from headgate.core.classify import classify
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
from headgate.core.rules import Rules
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy
from headgate.model.ticket import Ticket
from headgate.model.units import Duration, EndpointId, Instant, PoolName, RequestId
from headgate.model.usage import Usage
from headgate.ports.fleet import Phase
from headgate.telemetry.counts import (
    ENDED,
    NOT_SERVED,
    ClassMeter,
    PoolMeter,
    Size,
    Targets,
    TenantMeter,
    size_of,
)
from headgate.telemetry.histogram import LATENCY_BOUNDS_S
from headgate.telemetry.options import Objectives

NO_CLASS = "none"
"""The class of requests that were refused before they had one."""
OTHER = "other"

# Each request is remembered until it ends. More than one process can hold at once.
REQUESTS_MAX = 262_144
TENANTS_MAX = 100
"""So many tenants of the policy are told apart, those with the most weight; all others are `other`."""

_Meter = TypeVar("_Meter")


class _Open:
    """What is known of a request until it and its last attempt have ended."""

    __slots__ = (
        "arrived",
        "class_meter",
        "ended",
        "first_at",
        "heard",
        "hedge",
        "pool_meter",
        "running",
        "size",
        "stream",
        "tenant_meter",
        "usage",
    )

    def __init__(
        self, ticket: Ticket, now: Instant, class_meter: ClassMeter, pool_meter: PoolMeter, tenant_meter: TenantMeter
    ) -> None:
        self.arrived = now
        self.stream = ticket.stream
        self.size: Size = size_of(ticket.prompt_bytes)
        self.class_meter = class_meter
        self.pool_meter = pool_meter
        self.tenant_meter = tenant_meter
        self.first_at: Instant | None = None
        """When the first token of a stream came."""
        self.heard: Instant | None = None
        """When its tokens were last reported."""
        self.usage: Usage | None = None
        """Of the attempt that completed."""
        self.running = 0
        """How many attempts are under way."""
        self.hedge: tuple[int, PoolMeter] | None = None
        """The number of the attempt that was made beside another, and its pool."""
        self.ended = False


class Meters:
    """An observer that counts."""

    def __init__(self, *, requests_max: int = REQUESTS_MAX) -> None:
        self._requests_max = requests_max
        self.classes = {name: ClassMeter() for name in (NO_CLASS, OTHER)}
        self.pools = {OTHER: PoolMeter()}
        self.tenants = {OTHER: TenantMeter()}
        self.promised: Mapping[str, Objectives] = {}
        """By class; only those of which something is promised."""
        self.held: dict[tuple[str, str], int] = {}
        """How many were held for an endpoint to start, by class and pool."""
        self._rules: Rules | None = None
        """Those of the present policy: what classes arrivals by."""
        self._open: dict[RequestId, _Open] = {}
        self._pool_of: dict[EndpointId, PoolName] = {}
        self.warming_since: dict[EndpointId, Instant] = {}
        """Since when those endpoints are known that do not serve, or since when they have not."""

    @property
    def open_requests(self) -> int:
        return len(self._open)

    def promise(self, promised: Mapping[str, Objectives]) -> None:
        """From here on requests are judged by these, and by the targets of their classes."""
        self.promised = dict(promised)
        for name, meter in self.classes.items():
            duration_ns = self.promised.get(name, Objectives()).duration_ns
            meter.targets = Targets(meter.targets.ttft_ns, meter.targets.tpot_ns, duration_ns)

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
        # What is frequent comes first, and is not matched by its fields: this is on the path of every decision.
        if isinstance(event, RequestArrived):
            self._arrived(event.ticket, now)
        elif isinstance(event, AttemptEnded):
            self._attempt_ended(event)
        elif isinstance(event, Progressed):
            self._progress(event, now)
        elif isinstance(event, FirstToken):
            self._first_token(event.request_id, now)
        else:
            self._happened(event, now)
        for command in commands:
            if isinstance(command, Dispatch):
                self._dispatched(command)
            elif isinstance(command, End):
                self._ended(command, now)
            elif isinstance(command, Hold):
                if (key := (command.service_class, command.pool)) in self.held:
                    self.held[key] += 1
            elif isinstance(command, Eject):
                self._pool(self._pool_of.get(command.endpoint_id)).ejections += 1

    def _happened(self, event: Event, now: Instant) -> None:
        match event:
            case PolicyChanged(policy, policy_hash):
                self._rules = Rules(policy, policy_hash)
                self._change_policy(policy)
            case EndpointJoined(endpoint):
                if endpoint.id not in self._pool_of:
                    self.warming_since[endpoint.id] = now
                self._pool_of[endpoint.id] = endpoint.pool
            case EndpointUnreadied(endpoint_id):
                self._unreadied(endpoint_id, now)
            case EndpointReadied(endpoint_id):
                self._readied(endpoint_id, now)
            case EndpointLeaving(endpoint_id):
                self._pool_of.pop(endpoint_id, None)
                self.warming_since.pop(endpoint_id, None)
            case _:
                pass

    def _unreadied(self, endpoint_id: EndpointId, now: Instant) -> None:
        if endpoint_id in self._pool_of:
            self.warming_since.setdefault(endpoint_id, now)

    def _readied(self, endpoint_id: EndpointId, now: Instant) -> None:
        if (since := self.warming_since.pop(endpoint_id, None)) is not None:
            self._pool(self._pool_of.get(endpoint_id)).warmings.add(Duration(now - since))

    def _arrived(self, ticket: Ticket, now: Instant) -> None:
        # Nobody tells the class of a request before it is sent or over, and it may wait long until then.
        service_class = None if self._rules is None else classify(ticket, self._rules)
        self.of_class(None if service_class is None else service_class.name).asked += 1
        if len(self._open) < self._requests_max:
            other = self.classes[OTHER], self.pools[OTHER]
            self._open[ticket.request_id] = _Open(ticket, now, *other, self.of_tenant(ticket.tenant))

    def _dispatched(self, command: Dispatch) -> None:
        class_meter, pool_meter = self.of_class(command.service_class), self._pool(command.pool)
        if command.hedge:
            pool_meter.hedges += 1
        elif command.attempt == 1:
            class_meter.wait.add(command.waited_ns)
            class_meter.admitted += 1
            class_meter.degraded += command.level > 0 or command.model is not None
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
        if found is not None and found.stream and found.first_at is None:
            found.first_at = now
            found.class_meter.first_token(found.size, now - found.arrived)

    def _progress(self, event: Progressed, now: Instant) -> None:
        for report in event.attempts:
            found = self._open.get(report.request_id)
            if found is None or not found.stream or report.tokens < 1:
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
        if event.fault is not None:
            pool_meter.faults[event.fault] += 1
        pool_meter.disbelieved += event.disbelieved
        tenant_meter = found.tenant_meter if found else self.tenants[OTHER]
        if (usage := event.usage) is not None:
            # A counter may never fall, whatever an engine claims.
            prompt_tokens, output_tokens = max(0, usage.prompt_tokens), max(0, usage.output_tokens)
            class_meter.prompt_tokens += prompt_tokens
            class_meter.output_tokens += output_tokens
            tenant_meter.prompt_tokens += prompt_tokens
            tenant_meter.output_tokens += output_tokens
        if found is not None:
            if event.ending is AttemptEnding.COMPLETED:
                found.usage = usage
            found.running -= 1
            self._forget_if_over(event.request_id, found)

    def _ended(self, command: End, now: Instant) -> None:
        meter, outcome = self.of_class(command.service_class), command.outcome
        meter.requests[outcome] += 1
        if not command.attempts and command.waited_ns:
            # It was let in, and was never sent.
            meter.admitted += 1
        found = self._open.get(command.request_id)
        tenant_meter = found.tenant_meter if found else self.tenants[OTHER]
        tenant_meter.requests[ENDED[outcome]] += 1
        if found is None:
            return
        if outcome is Outcome.COMPLETED:
            _completed(found, meter, now)
        elif found.stream and found.first_at is None and outcome in NOT_SERVED:
            meter.unserved()
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

    def of_class(self, name: str | None) -> ClassMeter:
        return self.classes.get(NO_CLASS if name is None else name) or self.classes[OTHER]

    def of_tenant(self, name: str) -> TenantMeter:
        """Its own, or that of the nearest above it that is told apart."""
        return self.tenants.get(name) or self.tenants[told_apart(name, self.tenants)]

    def _pool(self, name: str | None) -> PoolMeter:
        return self.pools.get(OTHER if name is None else name) or self.pools[OTHER]

    def _change_policy(self, policy: Policy) -> None:
        _keep(self.classes, (NO_CLASS, OTHER, *(each.name for each in policy.classes)), ClassMeter)
        _keep(self.pools, (OTHER, *(each.name for each in policy.pools)), PoolMeter)
        known = nlargest(TENANTS_MAX, policy.tenants, key=lambda each: each.weight)
        _keep(self.tenants, (OTHER, *(each.id for each in known)), TenantMeter)
        for each in policy.classes:
            self.classes[each.name].targets = Targets(each.ttft_ns, each.tpot_ns)
        self.promise(self.promised)
        self.held = _held(self.held, policy)


def _completed(found: _Open, meter: ClassMeter, now: Instant) -> None:
    meter.completed(found.size, now - found.arrived)
    if (usage := found.usage) is not None:
        meter.useful_prompt_tokens += max(0, usage.prompt_tokens)
        meter.useful_output_tokens += max(0, usage.output_tokens)
    if not found.stream or _within_targets(found, meter.targets, now):
        meter.good += 1


def _within_targets(found: _Open, targets: Targets, now: Instant) -> bool:
    """Whether the first token of a stream came in time, and those after it fast enough on the mean."""
    first_at = found.first_at
    if first_at is None:
        return targets.ttft_ns is None
    if targets.ttft_ns is not None and first_at - found.arrived > targets.ttft_ns:
        return False
    further = 0 if found.usage is None else found.usage.output_tokens - 1
    return targets.tpot_ns is None or further < 1 or now - first_at <= targets.tpot_ns * further


def told_apart(tenant: str, names: Container[str]) -> str:
    """The nearest above a tenant that is told apart: of `acme/search/nightly` perhaps `acme`."""
    while "/" in tenant:
        tenant = tenant.rpartition("/")[0]
        if tenant in names:
            return tenant
    return OTHER


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
