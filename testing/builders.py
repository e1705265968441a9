"""Builders for core tests, with defaults for everything that a test does not specify.

The defaults are one model "m" served by one pool "p", the classes interactive and batch in that order of priority, and
the tenants acme, bolt and coil.
"""

from headgate.core.commands import Abort, Command, Dispatch, Eject, End, Readmit
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptProgress,
    AttemptsProgressed,
    EndpointJoined,
    EndpointLeaving,
    EndpointNotReady,
    EndpointProbed,
    EndpointReady,
    Event,
    FirstToken,
    PolicyChanged,
    RequestArrived,
    RequestWithdrawn,
    WithdrawalCause,
)
from headgate.core.routing.router import LeastTimeRouter
from headgate.core.scheduler import Scheduler
from headgate.core.summary import EndpointSummary
from headgate.model.caps import Caps
from headgate.model.endpoint import Endpoint, EndpointProblem
from headgate.model.fault import Fault
from headgate.model.money import Bill
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules, Model, Policy, Pool, RetryRules, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.ticket import Api, Ticket
from headgate.model.units import (
    SECOND,
    ClassName,
    Duration,
    EndpointId,
    Instant,
    ModelName,
    PoolName,
    RequestId,
    TenantId,
    after,
)
from headgate.model.usage import Usage, UsageSource

START = Instant(1_000_000 * SECOND)


class _AnyTuple(tuple[Bill, ...]):
    """Equal to everything. `unittest.mock.ANY` is not a tuple, which a compiled class requires."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = tuple.__hash__


_ANY_BILLS = _AnyTuple()


# Time


def duration(seconds: float) -> Duration:
    return Duration(round(seconds * SECOND))


def at(seconds: float) -> Instant:
    """The instant this many seconds after the start of the test."""
    return after(START, duration(seconds))


# Policy


def a_class(
    name: str = "interactive",
    *,
    band: int = 0,
    queue_wait: float = 30,
    queue_length_max: int = 2_000,
    queue_length_per_tenant_max: int = 500,
    pools: tuple[str, ...] = (),
    service_tiers: tuple[str, ...] = (),
    prompt_tokens_max: int | None = None,
    unnamed: bool = True,
    caps: Caps | None = None,
) -> ServiceClass:
    return ServiceClass(
        ClassName(name),
        band,
        queue_wait_ns_max=duration(queue_wait),
        queue_length_max=queue_length_max,
        queue_length_per_tenant_max=queue_length_per_tenant_max,
        pools=tuple(PoolName(pool) for pool in pools),
        service_tiers=service_tiers,
        prompt_tokens_max=prompt_tokens_max,
        accepts_unclassified=unnamed,
        caps=caps or Caps(),
    )


INTERACTIVE = a_class("interactive", band=0)
BATCH = a_class("batch", band=1, service_tiers=("flex",))


def a_tenant(name: str = "acme", *, classes: tuple[str, ...] = (), models: tuple[str, ...] = ()) -> Tenant:
    return Tenant(
        TenantId(name), tuple(ClassName(each) for each in classes), tuple(ModelName(model) for model in models)
    )


def a_pool(name: str = "p", *, warm_up: float = 30) -> Pool:
    return Pool(PoolName(name), duration(warm_up))


def a_model(name: str = "m", *pools: str) -> Model:
    return Model(ModelName(name), tuple(PoolName(pool) for pool in pools or ("p",)))


def a_policy(
    *,
    classes: tuple[ServiceClass, ...] = (INTERACTIVE, BATCH),
    tenants: tuple[str | Tenant, ...] = ("acme", "bolt", "coil"),
    pools: tuple[str | Pool, ...] = ("p",),
    models: tuple[Model, ...] | None = None,
    retry: RetryRules | None = None,
    health: HealthRules | None = None,
) -> Policy:
    """Build a policy. By default, all pools serve model "m"."""
    pools_built = tuple(a_pool(pool) if isinstance(pool, str) else pool for pool in pools)
    return Policy(
        classes=classes,
        tenants=tuple(a_tenant(each) if isinstance(each, str) else each for each in tenants),
        pools=pools_built,
        models=(a_model("m", *(pool.name for pool in pools_built)),) if models is None else models,
        retry=retry or RetryRules(),
        health=health or HealthRules(),
    )


# Scheduler


def a_scheduler(
    *endpoints: Endpoint, policy: Policy | None = None, places: int = 1, router: LeastTimeRouter | None = None
) -> Scheduler:
    """A scheduler with the given endpoints ready. The default is one endpoint "e1" with `places` slots."""
    scheduler = Scheduler(router=router)
    commands_for(scheduler, at(0), policy_changed(policy or a_policy()))
    for endpoint in endpoints or (an_endpoint("e1", places=places),):
        commands_for(scheduler, at(0), EndpointJoined(endpoint), EndpointReady(endpoint.id))
    return scheduler


def a_scheduler_without_endpoints(policy: Policy | None = None) -> Scheduler:
    scheduler = Scheduler()
    commands_for(scheduler, at(0), policy_changed(policy or a_policy()))
    return scheduler


def commands_for(scheduler: Scheduler, now: Instant, *events: Event) -> list[Command]:
    """Commands that the scheduler returns for these events, all handled at `now`."""
    return [command for event in events for command in scheduler.handle(event, now)]


def endpoint_summary(scheduler: Scheduler, name: str) -> EndpointSummary:
    return next(each for each in scheduler.summary().endpoints if each.id == name)


# Events


def arrived(
    request: str,
    tenant: str = "acme",
    *,
    service_class: str | None = None,
    tier: str | None = None,
    model: str = "m",
    stream: bool = True,
    prompt_bytes: int = 100,
    prompt_bytes_kept: int = 0,
    client_retries: int = 0,
    first_token_within: float | None = None,
    complete_within: float | None = None,
    key: str | None = None,
    fingerprint: str = "",
    gateway: str = "",
) -> RequestArrived:
    """Build an arrival. Deadlines are in seconds from now; `key` is the Idempotency-Key."""
    return RequestArrived(
        Ticket(
            RequestId(request),
            Api.CHAT,
            ModelName(model),
            TenantId(tenant),
            stream=stream,
            prompt_bytes=prompt_bytes,
            requested_class=service_class,
            service_tier=tier,
            client_retries=client_retries,
            untrimmable_bytes=prompt_bytes_kept,
            first_token_ns_left=None if first_token_within is None else duration(first_token_within),
            completion_ns_left=None if complete_within is None else duration(complete_within),
            idempotency_key=key,
            fingerprint=fingerprint,
            gateway=gateway,
        )
    )


def first_token(request: str, attempt: int = 1, *, delivered: bool = True) -> FirstToken:
    return FirstToken(RequestId(request), attempt, delivered)


def progressed(*requests: str, attempt: int = 1) -> AttemptsProgressed:
    return AttemptsProgressed(tuple(AttemptProgress(RequestId(request), attempt, tokens=8) for request in requests))


def completed(request: str, attempt: int = 1, *, tokens: int | None = None, first_token: bool = False) -> AttemptEnded:
    usage = None if tokens is None else Usage(1, tokens, 0, UsageSource.ENGINE)
    return AttemptEnded(RequestId(request), attempt, AttemptEnding.COMPLETED, usage=usage, first_token=first_token)


def failed(
    request: str, attempt: int = 1, detail: str = "connection refused", *, fault: Fault | None = None
) -> AttemptEnded:
    return AttemptEnded(RequestId(request), attempt, AttemptEnding.FAILED, detail, fault=fault)


def timed_out(
    request: str, attempt: int = 1, detail: str = "no token in time", *, fault: Fault | None = None
) -> AttemptEnded:
    return AttemptEnded(RequestId(request), attempt, AttemptEnding.TIMEOUT, detail, fault=fault)


def engine_rejected(request: str, attempt: int = 1, detail: str = "context too long") -> AttemptEnded:
    return AttemptEnded(RequestId(request), attempt, AttemptEnding.REJECTED, detail)


def aborted(request: str, attempt: int = 1) -> AttemptEnded:
    return AttemptEnded(RequestId(request), attempt, AttemptEnding.ABORTED)


def client_disconnected(request: str) -> RequestWithdrawn:
    return RequestWithdrawn(RequestId(request), WithdrawalCause.CLIENT_DISCONNECTED)


def grace_over(request: str) -> RequestWithdrawn:
    return RequestWithdrawn(RequestId(request), WithdrawalCause.SHUTDOWN)


def an_endpoint(name: str = "e1", *, pool: str = "p", places: int = 1) -> Endpoint:
    return Endpoint(EndpointId(name), PoolName(pool), places)


def joined(name: str, *, pool: str = "p", places: int = 1) -> EndpointJoined:
    return EndpointJoined(an_endpoint(name, pool=pool, places=places))


def readied(name: str) -> EndpointReady:
    return EndpointReady(EndpointId(name))


def probed(name: str, trouble: EndpointProblem | None = None, detail: str = "") -> EndpointProbed:
    return EndpointProbed(EndpointId(name), trouble, detail)


def unreadied(name: str) -> EndpointNotReady:
    return EndpointNotReady(EndpointId(name))


def leaving(name: str) -> EndpointLeaving:
    return EndpointLeaving(EndpointId(name))


def policy_changed(policy: Policy, policy_hash: str = "h1") -> PolicyChanged:
    return PolicyChanged(policy, policy_hash)


# Commands


def dispatch(
    request: str,
    endpoint: str = "e1",
    *,
    attempt: int = 1,
    pool: str = "p",
    service_class: str = "interactive",
    waited: float = 0,
    place: str = "1 of 1",
    caps: Caps | None = None,
) -> Dispatch:
    """A `Dispatch` with the limits of a class built by `a_class`."""
    limits = INTERACTIVE
    return Dispatch(
        RequestId(request),
        attempt,
        EndpointId(endpoint),
        PoolName(pool),
        ClassName(service_class),
        duration(waited),
        limits.first_token_ns_max,
        limits.idle_ns_max,
        limits.total_ns_max,
        caps or limits.caps,
        f"least loaded, {place} requests in flight",
    )


def abort(request: str, endpoint: str = "e1", *, attempt: int = 1, reason: str) -> Abort:
    return Abort(RequestId(request), attempt, EndpointId(endpoint), reason)


def end(
    request: str,
    outcome: Outcome,
    reason: str = "",
    *,
    service_class: str | None = "interactive",
    attempts: int = 0,
    waited: float = 0,
    retry_after: float | None = None,
) -> End:
    return End(
        RequestId(request),
        outcome,
        None if service_class is None else ClassName(service_class),
        attempts,
        duration(waited),
        None if retry_after is None else duration(retry_after),
        reason,
        # Bills are covered by separate tests.
        bills=_ANY_BILLS if attempts else (),
    )


def eject(endpoint: str, *, until: Instant, reason: str) -> Eject:
    return Eject(EndpointId(endpoint), until, reason)


def readmit(endpoint: str, reason: str) -> Readmit:
    return Readmit(EndpointId(endpoint), reason)


def only_end(commands: list[Command]) -> End:
    """The single command in the list, which must be an `End`."""
    [command] = commands
    assert isinstance(command, End)
    return command
