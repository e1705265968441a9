"""How do the tests of the core say what they arrange?

Every builder has a default for what a test does not care about: one model "m", served by one pool "p"; the classes
interactive and batch, in that order of priority; the tenants acme, bolt and coil.
"""

from unittest.mock import ANY

from headgate.core.commands import Abort, Command, Dispatch, Eject, End, Readmit
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptProgress,
    EndpointJoined,
    EndpointLeaving,
    EndpointReadied,
    EndpointUnreadied,
    Event,
    FirstToken,
    PolicyChanged,
    Progressed,
    RequestArrived,
    RequestWithdrawn,
    WithdrawalCause,
)
from headgate.core.routing.least_seconds import LeastSeconds
from headgate.core.scheduler import Scheduler
from headgate.core.summary import EndpointSummary
from headgate.model.caps import Caps
from headgate.model.endpoint import Endpoint
from headgate.model.fault import Fault
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


# Time


def lasting(seconds: float) -> Duration:
    return Duration(round(seconds * SECOND))


def at(seconds: float) -> Instant:
    """So long after the test's beginning."""
    return after(START, lasting(seconds))


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
        queue_wait_ns_max=lasting(queue_wait),
        queue_length_max=queue_length_max,
        queue_length_per_tenant_max=queue_length_per_tenant_max,
        pools=tuple(PoolName(pool) for pool in pools),
        service_tiers=service_tiers,
        prompt_tokens_max=prompt_tokens_max,
        unnamed=unnamed,
        caps=caps or Caps(),
    )


INTERACTIVE = a_class("interactive", band=0)
BATCH = a_class("batch", band=1, service_tiers=("flex",))


def a_tenant(name: str = "acme", *, classes: tuple[str, ...] = (), models: tuple[str, ...] = ()) -> Tenant:
    return Tenant(
        TenantId(name), tuple(ClassName(each) for each in classes), tuple(ModelName(model) for model in models)
    )


def a_pool(name: str = "p", *, warm_up: float = 30) -> Pool:
    return Pool(PoolName(name), lasting(warm_up))


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
    """Where no models are given, the model "m" is served by all of the pools."""
    pools_built = tuple(a_pool(pool) if isinstance(pool, str) else pool for pool in pools)
    return Policy(
        classes=classes,
        tenants=tuple(a_tenant(each) if isinstance(each, str) else each for each in tenants),
        pools=pools_built,
        models=(a_model("m", *(pool.name for pool in pools_built)),) if models is None else models,
        retry=retry or RetryRules(),
        health=health or HealthRules(),
    )


# The scheduler


def a_scheduler(
    *endpoints: Endpoint, policy: Policy | None = None, places: int = 1, router: LeastSeconds | None = None
) -> Scheduler:
    """A scheduler with these endpoints ready; where none are given, with "e1" and so many places."""
    scheduler = Scheduler(router=router)
    told(scheduler, at(0), policy_changed(policy or a_policy()))
    for endpoint in endpoints or (an_endpoint("e1", places=places),):
        told(scheduler, at(0), EndpointJoined(endpoint), EndpointReadied(endpoint.id))
    return scheduler


def a_scheduler_without_endpoints(policy: Policy | None = None) -> Scheduler:
    scheduler = Scheduler()
    told(scheduler, at(0), policy_changed(policy or a_policy()))
    return scheduler


def told(scheduler: Scheduler, now: Instant, *events: Event) -> list[Command]:
    """What the scheduler says to these events, all at one moment."""
    return [command for event in events for command in scheduler.handle(event, now)]


def endpoint_summary(scheduler: Scheduler, name: str) -> EndpointSummary:
    return next(each for each in scheduler.summary().endpoints if each.id == name)


# What happens


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
    """The caller's deadlines are given in seconds from here on; the key is its Idempotency-Key."""
    return RequestArrived(
        Ticket(
            RequestId(request),
            Api.CHAT,
            ModelName(model),
            TenantId(tenant),
            stream=stream,
            prompt_bytes=prompt_bytes,
            class_named=service_class,
            service_tier=tier,
            client_retries=client_retries,
            prompt_bytes_kept=prompt_bytes_kept,
            first_token_ns_left=None if first_token_within is None else lasting(first_token_within),
            completion_ns_left=None if complete_within is None else lasting(complete_within),
            idempotency_key=key,
            fingerprint=fingerprint,
            gateway=gateway,
        )
    )


def first_token(request: str, attempt: int = 1, *, delivered: bool = True) -> FirstToken:
    return FirstToken(RequestId(request), attempt, delivered)


def progressed(*requests: str, attempt: int = 1) -> Progressed:
    return Progressed(tuple(AttemptProgress(RequestId(request), attempt, tokens=8) for request in requests))


def completed(request: str, attempt: int = 1, *, tokens: int | None = None) -> AttemptEnded:
    usage = None if tokens is None else Usage(1, tokens, 0, UsageSource.ENGINE)
    return AttemptEnded(RequestId(request), attempt, AttemptEnding.COMPLETED, usage=usage)


def failed(
    request: str, attempt: int = 1, detail: str = "connection refused", *, fault: Fault | None = None
) -> AttemptEnded:
    return AttemptEnded(RequestId(request), attempt, AttemptEnding.FAILED, detail, fault=fault)


def fell_silent(
    request: str, attempt: int = 1, detail: str = "no token in time", *, fault: Fault | None = None
) -> AttemptEnded:
    return AttemptEnded(RequestId(request), attempt, AttemptEnding.SILENT, detail, fault=fault)


def refused(request: str, attempt: int = 1, detail: str = "context too long") -> AttemptEnded:
    return AttemptEnded(RequestId(request), attempt, AttemptEnding.REFUSED, detail)


def aborted(request: str, attempt: int = 1) -> AttemptEnded:
    return AttemptEnded(RequestId(request), attempt, AttemptEnding.ABORTED)


def client_left(request: str) -> RequestWithdrawn:
    return RequestWithdrawn(RequestId(request), WithdrawalCause.CLIENT_LEFT)


def grace_over(request: str) -> RequestWithdrawn:
    return RequestWithdrawn(RequestId(request), WithdrawalCause.GRACE_OVER)


def an_endpoint(name: str = "e1", *, pool: str = "p", places: int = 1) -> Endpoint:
    return Endpoint(EndpointId(name), PoolName(pool), places)


def joined(name: str, *, pool: str = "p", places: int = 1) -> EndpointJoined:
    return EndpointJoined(an_endpoint(name, pool=pool, places=places))


def readied(name: str) -> EndpointReadied:
    return EndpointReadied(EndpointId(name))


def unreadied(name: str) -> EndpointUnreadied:
    return EndpointUnreadied(EndpointId(name))


def leaving(name: str) -> EndpointLeaving:
    return EndpointLeaving(EndpointId(name))


def policy_changed(policy: Policy, policy_hash: str = "h1") -> PolicyChanged:
    return PolicyChanged(policy, policy_hash)


# What is ordered


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
        lasting(waited),
        limits.first_token_ns_max,
        limits.idle_ns_max,
        limits.total_ns_max,
        caps or limits.caps,
        f"least load, {place} in flight with it",
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
        lasting(waited),
        None if retry_after is None else lasting(retry_after),
        reason,
        # What it cost is a question of its own.
        bills=ANY if attempts else (),
    )


def eject(endpoint: str, *, until: Instant, reason: str) -> Eject:
    return Eject(EndpointId(endpoint), until, reason)


def readmit(endpoint: str, reason: str) -> Readmit:
    return Readmit(EndpointId(endpoint), reason)


def the_end(commands: list[Command]) -> End:
    """The only thing that was ordered, an ending."""
    [command] = commands
    assert isinstance(command, End)
    return command
