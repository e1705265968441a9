"""Counters and histograms for this process since it started.

An observer updates them with every decision; `prometheus.py` renders them. Label cardinality is bounded, because every
label value comes from a fixed set: the classes and pools of the current policy, a bounded number of its tenants, the
outcomes and the attempt endings. Any other name counts as `other`, for example a class that a reload removed while its
requests were running. Memory use therefore does not grow with traffic, reloads or the number of tenants.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TypeVar

from headgate.core.classify import classify
from headgate.core.commands import Command, Dispatch, Eject, End, Hold
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptsProgressed,
    EndpointJoined,
    EndpointLeaving,
    EndpointNotReady,
    EndpointReady,
    Event,
    FirstToken,
    PolicyChanged,
    RequestArrived,
)
from headgate.core.rules import Rules
from headgate.model.money import PAYER_BY_CAUSE, Payer
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy
from headgate.model.routes import MIRROR_CLASS
from headgate.model.ticket import Ticket
from headgate.model.units import BYTES_PER_TOKEN, Duration, EndpointId, Instant, PoolName, RequestId
from headgate.model.usage import Usage
from headgate.ports.fleet import Phase
from headgate.telemetry.heaviest_tenants import HeaviestTenants
from headgate.telemetry.histogram import LATENCY_BOUNDS_S
from headgate.telemetry.meter_types import (
    OTHER,
    OUTCOME_GROUPS,
    UNAVAILABLE_OUTCOMES,
    ClassMeter,
    ClassTargets,
    PoolMeter,
    PromptSize,
    TenantMeter,
    prompt_size,
)
from headgate.telemetry.options import Objectives
from headgate.telemetry.route_meters import RouteMeters
from headgate.telemetry.tenant_activity import TENANTS_MAX as ACTIVE_TENANTS_MAX
from headgate.telemetry.tenant_activity import TenantActivities

NO_CLASS = "none"
"""Class label of requests that were rejected before they were classified."""

REQUESTS_MAX = 262_144
"""Maximum number of open requests tracked. One process never has this many."""
TENANTS_MAX = 100
"""Maximum number of tenants with their own metrics. The tenants with the highest weights get them; all others count as
`other`.
"""

# Looked up once: in Python 3.11, access to a member through its enum takes as long as several function calls.
_ATTEMPT_COMPLETED = AttemptEnding.COMPLETED
_COMPLETED = Outcome.COMPLETED
_TENANT_PAYS = Payer.TENANT

_Meter = TypeVar("_Meter")


class _OpenRequest:
    """A request, tracked until it and its last attempt have ended."""

    __slots__ = (
        "activity",
        "arrived_at",
        "class_meter",
        "ended",
        "first_token_at",
        "hedge",
        "pool_meter",
        "progress_at",
        "running",
        "size",
        "stream",
        "tenant",
        "tenant_meter",
        "tokens",
        "usage",
    )

    def __init__(self, ticket: Ticket, now: Instant, meters: "Meters") -> None:
        self.arrived_at = now
        self.stream = ticket.stream
        self.size: PromptSize = prompt_size(ticket.prompt_bytes)
        self.tenant = ticket.tenant
        # Class and pool are not known before the request is sent.
        self.class_meter = meters.classes[OTHER]
        self.pool_meter = meters.pools[OTHER]
        self.tenant_meter = meters.of_tenant(ticket.tenant)
        self.activity = meters.activities.of_tenant(ticket.tenant)
        self.tokens = self.activity.request_arrived(ticket.prompt_bytes // BYTES_PER_TOKEN)
        self.first_token_at: Instant | None = None
        """Arrival time of a stream's first token."""
        self.progress_at: Instant | None = None
        """Time of the last progress report."""
        self.usage: Usage | None = None
        """Usage of the completed attempt."""
        self.running = 0
        """Number of attempts in flight."""
        self.hedge: tuple[int, PoolMeter] | None = None
        """Attempt number and pool of the hedge."""
        self.ended = False


class Meters:
    """Observer that updates the counters and histograms."""

    def __init__(
        self,
        *,
        counts_bills: bool = False,
        requests_max: int = REQUESTS_MAX,
        active_tenants_max: int = ACTIVE_TENANTS_MAX,
    ) -> None:
        """With `counts_bills`, costs are counted from the bills in the commands that end requests. Otherwise another
        observer must count them.
        """
        self._counts_bills = counts_bills
        self._requests_max = requests_max
        self.classes = {name: ClassMeter() for name in (NO_CLASS, OTHER)}
        self.pools = {OTHER: PoolMeter()}
        self.tenants = {OTHER: TenantMeter()}
        self.activities = TenantActivities(tenants_max=active_tenants_max)
        """Queued and in-flight requests of each tenant."""
        self.objectives: Mapping[str, Objectives] = {}
        """Objectives by class, for classes that have any."""
        self.held_requests: dict[tuple[str, str], int] = {}
        """Number of requests held for a cold start, by class and pool."""
        self.routes = RouteMeters()
        """Requests of models with routes."""
        self._heaviest = HeaviestTenants()
        self._rules: Rules | None = None
        """Rules of the current policy, used to classify new requests."""
        self._open: dict[RequestId, _OpenRequest] = {}
        self._pool_of: dict[EndpointId, PoolName] = {}
        self.warming_since: dict[EndpointId, Instant] = {}
        """When each unready endpoint joined or stopped being ready."""

    @property
    def open_requests(self) -> int:
        return len(self._open)

    def set_objectives(self, objectives: Mapping[str, Objectives]) -> None:
        """Replaces the objectives against which completed requests are measured."""
        self.objectives = dict(objectives)
        for name, meter in self.classes.items():
            duration_ns = self.objectives.get(name, Objectives()).duration_ns
            targets = meter.targets
            meter.targets = ClassTargets(targets.ttft_ns, targets.tpot_ns, duration_ns, targets.e2e_ns)

    def count_rejected(self, outcome: Outcome) -> None:
        """Counts a request that was rejected before it reached the scheduler."""
        self.classes[NO_CLASS].requests[outcome] += 1

    def count_batch(self, pool: PoolName, size: int, waits_ns: Sequence[int]) -> None:
        """Counts an engine call with `size` inputs.

        `waits_ns` contains the batch wait of each request for which this is the first call.
        """
        meter = self.of_pool(pool)
        meter.batch_size.add(size)
        for wait_ns in waits_ns:
            meter.batch_wait.add(wait_ns)

    def count_endpoint_start(self, pool: PoolName, took_ns: Mapping[Phase, Duration]) -> None:
        """Records the duration of each phase of an endpoint's cold start."""
        starts = self.of_pool(pool).start_phases
        for phase, length in took_ns.items():
            starts[phase].add(length)

    def count_endpoint_drain(self, pool: PoolName, took_ns: Duration) -> None:
        self.of_pool(pool).drains.add(took_ns)

    def count_bills(self, end: End, tenant: str) -> None:
        """Adds the costs of a request that has ended."""
        class_meter, tenant_meter = self.of_class(end.service_class), self.of_tenant(tenant)
        for bill in end.bills:
            nano_usd = bill.nano_usd
            class_meter.nano_usd += nano_usd
            if PAYER_BY_CAUSE[bill.cause] is _TENANT_PAYS:
                tenant_meter.nano_usd += nano_usd

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        # This runs on every decision, so frequent events come first, and types are compared instead of using pattern
        # matching or `isinstance`, which take several times as long for each type that does not match.
        if type(event) is RequestArrived:
            self._arrived(event.ticket, commands, now)
        elif type(event) is AttemptEnded:
            self._attempt_ended(event, now)
        elif type(event) is AttemptsProgressed:
            self._progress(event, now)
        elif type(event) is FirstToken:
            self._first_token(event.request_id, now)
        else:
            self._other_event(event, now)
        for command in commands:
            if type(command) is Dispatch:
                self._dispatched(command)
            elif type(command) is End:
                self._ended(command, now)
            else:
                self._other_command(command)

    def _other_command(self, command: Command) -> None:
        if isinstance(command, Hold):
            if (key := (command.service_class, command.pool)) in self.held_requests:
                self.held_requests[key] += 1
        elif isinstance(command, Eject):
            self.of_pool(self._pool_of.get(command.endpoint_id)).ejections += 1

    def _other_event(self, event: Event, now: Instant) -> None:
        match event:
            case PolicyChanged(policy, policy_hash):
                self._rules = Rules(policy, policy_hash)
                self._change_policy(policy)
            case EndpointJoined(endpoint):
                if endpoint.id not in self._pool_of:
                    self.warming_since[endpoint.id] = now
                self._pool_of[endpoint.id] = endpoint.pool
            case EndpointNotReady(endpoint_id):
                self._endpoint_not_ready(endpoint_id, now)
            case EndpointReady(endpoint_id):
                self._endpoint_ready(endpoint_id, now)
            case EndpointLeaving(endpoint_id):
                self._pool_of.pop(endpoint_id, None)
                self.warming_since.pop(endpoint_id, None)
            case _:
                pass

    def _endpoint_not_ready(self, endpoint_id: EndpointId, now: Instant) -> None:
        if endpoint_id in self._pool_of:
            self.warming_since.setdefault(endpoint_id, now)

    def _endpoint_ready(self, endpoint_id: EndpointId, now: Instant) -> None:
        if (since := self.warming_since.pop(endpoint_id, None)) is not None:
            self.of_pool(self._pool_of.get(endpoint_id)).warmings.add(Duration(now - since))

    def _arrived(self, ticket: Ticket, commands: Sequence[Command], now: Instant) -> None:
        self.of_class(self._class_on_arrival(ticket, commands)).arrived += 1
        if self.routes.models and ticket.model in self.routes.models:
            self.routes.arrived(ticket)
        if len(self._open) < self._requests_max:
            self._open[ticket.request_id] = _OpenRequest(ticket, now, self)

    def _class_on_arrival(self, ticket: Ticket, commands: Sequence[Command]) -> str | None:
        """Class of a request that has just arrived; None if it has none."""
        if commands:
            command = commands[0]
            if type(command) is Dispatch and command.request_id == ticket.request_id:
                return command.service_class
        if ticket.mirror_route:
            return MIRROR_CLASS
        # The scheduler reports the class only when the request is sent or ends, which may be much later.
        service_class = None if self._rules is None else classify(ticket, self._rules)
        return None if service_class is None else service_class.name

    def _dispatched(self, command: Dispatch) -> None:
        class_meter, pool_meter = self.of_class(command.service_class), self.of_pool(command.pool)
        if command.route:
            self.routes.dispatched(command)
        if command.hedge:
            pool_meter.hedges += 1
        elif command.attempt == 1:
            class_meter.queue_wait.add(command.waited_ns)
            class_meter.admitted += 1
            class_meter.degraded += command.level > 0 or command.model is not None
        else:
            pool_meter.retries += 1
        if (found := self._open.get(command.request_id)) is None:
            return
        found.running += 1
        if command.hedge:
            found.hedge = (command.attempt, pool_meter)
        else:
            found.class_meter, found.pool_meter = class_meter, pool_meter
        if found.running == 1 and not found.ended:
            found.activity.queued -= 1
            found.activity.in_flight += 1

    def _first_token(self, request_id: RequestId, now: Instant) -> None:
        found = self._open.get(request_id)
        if found is not None and found.stream and found.first_token_at is None:
            found.first_token_at = now
            found.class_meter.record_first_token(found.size, now - found.arrived_at)

    def _progress(self, event: AttemptsProgressed, now: Instant) -> None:
        for report in event.attempts:
            found = self._open.get(report.request_id)
            if found is None or not found.stream or report.tokens < 1:
                continue
            if found.progress_at is not None:
                took_ns = (now - found.progress_at) // report.tokens
                found.class_meter.inter_token_latency.add_several(took_ns, report.tokens)
            found.progress_at = now

    def _attempt_ended(self, event: AttemptEnded, now: Instant) -> None:
        found = self._open.get(event.request_id)
        if found is None:
            _count_attempt(event, self.classes[OTHER], self.pools[OTHER], self.tenants[OTHER])
            return
        if event.first_token and found.stream:
            self._first_token(event.request_id, now)
        pool_meter = found.pool_meter
        if found.hedge is not None and found.hedge[0] == event.attempt:
            pool_meter = found.hedge[1]
        _count_attempt(event, found.class_meter, pool_meter, found.tenant_meter)
        if event.ending is _ATTEMPT_COMPLETED:
            found.usage = event.usage
        if not found.running:
            return
        found.running -= 1
        if found.running:
            return
        if found.ended:
            del self._open[event.request_id]
        else:
            found.activity.in_flight -= 1
            found.activity.queued += 1

    def _ended(self, command: End, now: Instant) -> None:
        meter, outcome = self.of_class(command.service_class), command.outcome
        meter.requests[outcome] += 1
        if self.routes.models:
            self.routes.ended(command)
        if not command.attempts and command.waited_ns:
            # The request was admitted but never sent.
            meter.admitted += 1
        found = self._open.get(command.request_id)
        if command.bills and self._counts_bills:
            self.count_bills(command, OTHER if found is None else found.tenant)
        if found is None:
            self.tenants[OTHER].requests[OUTCOME_GROUPS[outcome]] += 1
            return
        found.tenant_meter.requests[OUTCOME_GROUPS[outcome]] += 1
        if outcome is _COMPLETED:
            _count_completed(found, meter, now)
        elif found.stream and found.first_token_at is None and outcome in UNAVAILABLE_OUTCOMES:
            meter.record_unserved()
        if not found.ended:
            found.activity.open_tokens -= found.tokens
        if not found.running:
            found.activity.queued -= 1
            del self._open[command.request_id]
        elif not found.ended:
            # Keep the request until its attempt has ended.
            found.activity.in_flight -= 1
            found.ended = True

    def snapshot(self) -> dict[str, object]:
        """All counters as plain data. Rates and percentiles are computed from the difference between two snapshots."""
        return {
            "latency_bounds_s": LATENCY_BOUNDS_S,
            "classes": {name: meter.snapshot() for name, meter in self.classes.items()},
            "pools": {
                name: {"retries": meter.retries, "hedges": meter.hedges, "ejections": meter.ejections}
                for name, meter in self.pools.items()
            },
        }

    def of_class(self, name: str | None) -> ClassMeter:
        found = self.classes.get(NO_CLASS if name is None else name)
        return self.classes[OTHER] if found is None else found

    def of_tenant(self, name: str) -> TenantMeter:
        """The tenant's meter, or that of its nearest ancestor with its own metrics."""
        found = self.tenants.get(name)
        return self.tenants[nearest_known_tenant(name, self.tenants)] if found is None else found

    def of_pool(self, name: str | None) -> PoolMeter:
        found = self.pools.get(OTHER if name is None else name)
        return self.pools[OTHER] if found is None else found

    def _change_policy(self, policy: Policy) -> None:
        mirrors = any(route.mirror is not None for model in policy.models for route in model.routes)
        names = (*(each.name for each in policy.classes), *((MIRROR_CLASS,) if mirrors else ()))
        _replace_keys(self.classes, (NO_CLASS, OTHER, *names), ClassMeter)
        _replace_keys(self.pools, (OTHER, *(each.name for each in policy.pools)), PoolMeter)
        self._heaviest.change(policy.tenants)
        _replace_keys(self.tenants, (OTHER, *self._heaviest.first(TENANTS_MAX)), TenantMeter)
        for each in policy.classes:
            self.classes[each.name].targets = ClassTargets(each.ttft_ns, each.tpot_ns, e2e_ns=each.e2e_ns)
        self.set_objectives(self.objectives)
        self.held_requests = _held_counters(self.held_requests, policy)
        self.routes.change_models(policy.models)


def _count_attempt(
    event: AttemptEnded, class_meter: ClassMeter, pool_meter: PoolMeter, tenant_meter: TenantMeter
) -> None:
    pool_meter.endings[event.ending] += 1
    if event.fault is not None:
        pool_meter.faults[event.fault] += 1
    if event.usage_implausible:
        pool_meter.usage_implausible += 1
    usage = event.usage
    if usage is None:
        return
    # A counter must never decrease, even if an engine reports negative usage.
    if (prompt_tokens := usage.prompt_tokens) > 0:
        class_meter.prompt_tokens += prompt_tokens
        tenant_meter.prompt_tokens += prompt_tokens
    if (output_tokens := usage.output_tokens) > 0:
        class_meter.output_tokens += output_tokens
        tenant_meter.output_tokens += output_tokens


def _count_completed(found: _OpenRequest, meter: ClassMeter, now: Instant) -> None:
    meter.record_completion(found.size, now - found.arrived_at)
    if (usage := found.usage) is not None:
        if usage.prompt_tokens > 0:
            meter.useful_prompt_tokens += usage.prompt_tokens
        if usage.output_tokens > 0:
            meter.useful_output_tokens += usage.output_tokens
            found.activity.request_completed(usage.output_tokens)
    targets = meter.targets
    if targets.e2e_ns is not None and now - found.arrived_at > targets.e2e_ns:
        return
    if not found.stream or _within_targets(found, targets, now):
        meter.goodput += 1


def _within_targets(found: _OpenRequest, targets: ClassTargets, now: Instant) -> bool:
    """Whether a stream met its TTFT target and its target for the mean time per output token."""
    first_at = found.first_token_at
    if first_at is None:
        return targets.ttft_ns is None
    if targets.ttft_ns is not None and first_at - found.arrived_at > targets.ttft_ns:
        return False
    further = 0 if found.usage is None else found.usage.output_tokens - 1
    return targets.tpot_ns is None or further < 1 or now - first_at <= targets.tpot_ns * further


def nearest_known_tenant(tenant: str, names: Container[str]) -> str:
    """Nearest ancestor in `names`, or `other` if there is none. For `acme/search/nightly`, this may be `acme`."""
    while "/" in tenant:
        tenant = tenant.rpartition("/")[0]
        if tenant in names:
            return tenant
    return OTHER


def _held_counters(counted: Mapping[tuple[str, str], int], policy: Policy) -> dict[tuple[str, str], int]:
    """One counter for each class and pool that allow holds. Counters for other pairs are dropped."""
    return {
        (each.name, pool.name): counted.get((each.name, pool.name), 0)
        for each in policy.classes
        for pool in policy.pools
        if each.cold_start_wait_ns_max is not None and pool.hold_max and (not each.pools or pool.name in each.pools)
    }


def _replace_keys(meters: dict[str, _Meter], names: Sequence[str], new: Callable[[], _Meter]) -> None:
    """Adds and removes meters so that there is exactly one for each name in `names`.

    Meters that remain keep their counts.
    """
    for gone in [name for name in meters if name not in names]:
        del meters[gone]
    for name in names:
        if name not in meters:
            meters[name] = new()
