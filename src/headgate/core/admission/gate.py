"""Admission checks. Each one returns a rejection with its reason, or None.

The checks run in the order that is most useful to the caller: first errors in the request, then permissions that its
API key lacks, then temporary conditions.
"""

from dataclasses import dataclass
from typing import Final

from headgate.core.admission.budgets import Budgets
from headgate.core.admission.limits import TenantLimits
from headgate.core.admission.retry_after import drain_time
from headgate.core.classify import classify
from headgate.core.estimate import suitable_pools
from headgate.core.queues.backlog import Backlog
from headgate.core.queues.holds import Holds
from headgate.core.request_state import Request
from headgate.core.retry_budget import RetryBudget
from headgate.core.routing.fleet import FleetState
from headgate.core.routing.model_routes import choose_route
from headgate.core.routing.model_tiers import TierCriteria, allowed_pools, tier_names, tier_pools
from headgate.core.routing.router import LeastTimeRouter
from headgate.core.rules import Rules
from headgate.model.outcome import Outcome
from headgate.model.policy import AUTO_SERVICE_TIERS, Model, Overflow, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.ticket import APIS_WITHOUT_OUTPUT, Ticket
from headgate.model.units import (
    BYTES_PER_TOKEN,
    SECOND,
    Duration,
    Instant,
    ModelName,
    PoolName,
    RequestId,
    format_seconds,
)

_ADAPTER_RETRY_NS: Final = Duration(5 * SECOND)
"""Retry-After of a request whose LoRA adapter no endpoint holds: the interval between two probes."""


@dataclass(frozen=True, slots=True)
class Rejection:
    outcome: Outcome
    reason: str
    service_class: ServiceClass | None = None
    retry_after_ns: Duration | None = None


class Admitted:
    """The class of a request that the policy allows, and the pools that may serve it."""

    # A named tuple takes longer to create.
    __slots__ = ("model", "overflow", "pools", "route", "service_class")

    def __init__(
        self,
        service_class: ServiceClass,
        pools: tuple[PoolName, ...],
        model: ModelName,
        route: str = "",
        overflow: str = "",
    ) -> None:
        self.service_class = service_class
        self.pools = pools
        self.model = model
        """Model that the pools serve."""
        self.route = route
        """Route that selected the pools. Empty if none did."""
        self.overflow = overflow
        """Why the pools are the model's overflow pools. Empty if they are not."""


def check_policy(ticket: Ticket, rules: Rules, kept_route: str = "") -> Admitted | Rejection:
    """Checks a ticket against the policy alone: its tenant, class and model, and the pools that may serve it.

    `kept_route` is the route of an earlier attempt, which the request keeps if possible.
    """
    tenant = rules.tenants.get(ticket.tenant)
    if tenant is None:
        return _unknown_tenant_rejection(ticket, rules)
    service_class = classify(ticket, rules)
    if service_class is None:
        return _unknown_class_rejection(ticket, rules)
    model = rules.models.get(ticket.model)
    if model is None or (tenant.models and not _may_use_model(tenant, model)):
        # The message must not reveal whether a model exists that the key may not use.
        reason = f'model "{ticket.model}" does not exist or this API key may not use it; '
        reason += "GET /v1/models lists the available models"
        return Rejection(Outcome.MODEL_NOT_FOUND, reason, service_class)
    if tenant.classes and service_class.name not in tenant.classes:
        allowed = ", ".join(tenant.classes)
        reason = f'this API key may not use class "{service_class.name}"; allowed classes: {allowed}'
        return Rejection(Outcome.FORBIDDEN, reason, service_class)
    if rules.hosted_pools:
        service_class = rules.class_for(service_class, tenant.id)
    if ticket.model_tier is not None and ticket.model_tier not in tier_names(model):
        known = ", ".join(tier_names(model)) or "none"
        reason = f'model "{model.name}" has no tier "{ticket.model_tier}"; available tiers: {known}'
        return Rejection(Outcome.INVALID_REQUEST, reason, service_class)
    pools, route = model.pools, ""
    if model.routes and (chosen := choose_route(model, ticket, tenant, service_class, kept_route)) is not None:
        pools, route = chosen.pools, chosen.name
    if model.tiers:
        pools = tier_pools(model, _tier_criteria(ticket, service_class, tenant), pools)
    elif service_class.pools:
        pools = allowed_pools(pools, service_class)
    if not pools:
        return _no_pool_rejection(model, service_class, tenant, rules)
    refusal = None if service_class.caps.prompt_tokens is None else _prompt_length_rejection(ticket, service_class)
    if refusal is None and ticket.prompts != 1:
        refusal = _prompt_count_rejection(ticket, service_class)
    return refusal or Admitted(service_class, pools, model.name, route)


def exhausted_beyond(pools: tuple[PoolName, ...], fleet: FleetState, rules: Rules, last: Instant) -> Instant | None:
    """Returns when hosted providers accept requests again, if all live endpoints are rate limited until after `last`.

    Such endpoints do not count as live for a request that may wait until `last`.
    """
    if not rules.hosted_pools:
        return None
    until = fleet.quotas.exhausted_until(pools)
    return until if until is not None and until > last else None


def fallback_for(
    ticket: Ticket, service_class: ServiceClass, fleet: FleetState, rules: Rules, last: Instant
) -> Admitted | None:
    """Returns the first fallback model that the tenant may use and that has live endpoints, with its pools.

    `last` is the end of the request's maximum wait.
    """
    asker = _tier_criteria(ticket, service_class, rules.tenants[ticket.tenant])
    for name in rules.models[ticket.model].fallbacks:
        other = rules.models.get(name)
        if (
            other is not None
            and _may_use_model(asker.tenant, other)
            and fleet.live_count(pools := tier_pools(other, asker))
            and exhausted_beyond(pools, fleet, rules, last) is None
        ):
            return Admitted(service_class, pools, other.name)
    return None


def overflow_rule(request: Request, rules: Rules) -> Overflow | None:
    """Returns the overflow rule for a request that is queued for its own pools. None if it may not overflow.

    A request whose last attempt failed in an overflow pool waits for its own pools.
    """
    model = rules.models.get(request.ticket.model)
    rule = None if model is None else model.overflow
    if rule is None or request.fell_back:
        return None
    if request.avoid is not None and request.avoid.pool in rule.pools:
        return None
    return rule if not rule.classes or request.service_class.name in rule.classes else None


def deadline_exceeded_rejection(request: Request, now: Instant) -> Rejection | None:
    """Returns a rejection if the caller's deadline passed before the request arrived."""
    if request.deadline is None or not request.deadline.passed(now):
        return None
    return Rejection(Outcome.DEADLINE_EXCEEDED, request.deadline.missed_reason("on arrival"), request.service_class)


def duplicate_rejection(first: RequestId | None, request: Request) -> Rejection | None:
    """Returns a rejection if the tenant has an open request, `first`, with the same Idempotency-Key."""
    if first is None:
        return None
    reason = f"request {first} has the same Idempotency-Key and is still in progress; wait for it or use another key"
    return Rejection(Outcome.DUPLICATE_REQUEST, reason, request.service_class, SECOND)


def quarantine_rejection(request: Request, left_ns: Duration) -> Rejection:
    """Returns the rejection of a quarantined request. `left_ns` is the remaining quarantine time."""
    reason = (
        f"the same request failed on two healthy endpoints and is quarantined for another {format_seconds(left_ns)}"
    )
    return Rejection(Outcome.QUARANTINED, reason, request.service_class, left_ns)


def hold_pool(
    service_class: ServiceClass, pools: tuple[PoolName, ...], fleet: FleetState, rules: Rules
) -> PoolName | None:
    """Returns the pool whose first endpoint a request of this class may wait for, preferring one that is starting."""
    if service_class.cold_start_wait_ns_max is None:
        return None
    empty = [name for name in pools if rules.scales_to_zero(name)]
    starting = [name for name in empty if fleet.is_warming((name,))]
    return next(iter(starting or empty), None)


def hold_rejection(
    request: Request, pool: PoolName, backlog: Backlog, fleet: FleetState, rules: Rules, *, holds: Holds, now: Instant
) -> Rejection | None:
    """Returns a rejection if the pool already holds its maximum number of requests."""
    held, held_max = backlog.held_for(pool), rules.pools[pool].hold_max
    if held < held_max:
        return None
    wait = expected_wait(request.pools, fleet, rules, holds, now)
    reason = (
        f"pool {pool} has no available endpoint and already holds {held} of {held_max} requests; "
        f"retry in about {format_seconds(wait)} or raise scaling.held_requests_max"
    )
    return Rejection(Outcome.NO_ENDPOINTS, reason, request.service_class, wait)


def missing_adapter_rejection(request: Request, fleet: FleetState) -> Rejection | None:
    """Returns a rejection if no endpoint holds the request's LoRA adapter, including those that are ejected."""
    if _may_hold_adapter(request.pools, request.adapter, fleet):
        return None
    reason = f'no endpoint in pool {", ".join(request.pools)} holds adapter "{request.adapter}"; '
    reason += "load it into an engine, or set its source"
    return Rejection(Outcome.NO_ENDPOINTS, reason, request.service_class, _ADAPTER_RETRY_NS)


def _may_hold_adapter(pools: tuple[PoolName, ...], adapter: str, fleet: FleetState) -> bool:
    """Returns whether an endpoint of these pools holds the adapter, or may hold it."""
    return any(
        endpoint.adapters.holds(adapter) and not endpoint.leaving and not endpoint.drained
        for name in pools
        if (pool := fleet.pools.get(name)) is not None
        for endpoint in pool.endpoints.values()
    )


def no_endpoint_rejection(
    service_class: ServiceClass,
    pools: tuple[PoolName, ...],
    fleet: FleetState,
    rules: Rules,
    *,
    holds: Holds,
    now: Instant,
    exhausted_until: Instant | None = None,
) -> Rejection | None:
    """Returns a rejection if no endpoint is live and none is expected within the class's maximum queue wait.

    A starting endpoint can become ready at any time, so requests wait for it. `exhausted_until` is the result of
    `exhausted_beyond`.
    """
    if (
        (exhausted_until is None and fleet.live_count(pools))
        or fleet.is_warming(pools)
        or hold_pool(service_class, pools, fleet, rules) is not None
    ):
        return None
    names = ", ".join(pools)
    if exhausted_until is not None:
        wait = Duration(exhausted_until - now)
        reason = f"the provider of pool {names} accepts no requests for another {format_seconds(wait)} (rate limit)"
        return Rejection(Outcome.NO_ENDPOINTS, reason, service_class, wait)
    coming = _next_available_ns(pools, fleet, rules, now)
    if coming is not None and coming <= service_class.queue_wait_ns_max:
        return None
    wait = expected_wait(pools, fleet, rules, holds, now)
    reason = f"no endpoint in pool {names} is available; "
    if any(rules.scales_to_zero(name) for name in pools):
        starts = f"one starts in about {format_seconds(wait)}"
        reason += f'{starts}, but class "{service_class.name}" does not set cold_start_wait_max'
    else:
        reason += "see /status on the admin listener"
    return Rejection(Outcome.NO_ENDPOINTS, reason, service_class, wait)


def readmission(
    request: Request, fleet: FleetState, rules: Rules, *, holds: Holds, last: Instant, now: Instant
) -> Admitted | Rejection:
    """Returns the pools for another attempt: the request's own or, if none of them is live, a fallback model's.

    `last` is the end of the request's maximum wait.
    """
    ticket = rules.without_unknown_names(request.ticket)
    verdict = check_policy(ticket, rules, request.route)
    if isinstance(verdict, Rejection):
        return verdict
    pools = suitable_pools(request, verdict.pools, fleet, rules)
    until = exhausted_beyond(pools, fleet, rules, last)
    if until is None and fleet.live_count(pools):
        return verdict
    service_class = verdict.service_class
    return (
        fallback_for(ticket, service_class, fleet, rules, last)
        or no_endpoint_rejection(service_class, pools, fleet, rules, holds=holds, now=now, exhausted_until=until)
        or verdict
    )


def limit_rejection(request: Request, limits: TenantLimits, now: Instant) -> Rejection | None:
    """Returns a rejection if the request exceeds a limit at any level of its tenant's path."""
    short = limits.shortage(request.ticket, request.prompt_tokens, request.output_tokens, now)
    return None if short is None else Rejection(short.outcome, short.reason, request.service_class, short.wait_ns)


def budget_rejection(request: Request, budgets: Budgets, now: Instant) -> Rejection | None:
    """Returns a rejection if the request's maximum cost exceeds the remaining amount of an applicable budget."""
    short = budgets.shortage(request, now)
    return None if short is None else Rejection(short.outcome, short.reason, request.service_class, short.wait_ns)


def queue_full_rejection(
    request: Request,
    fleet: FleetState,
    backlog: Backlog,
    retry_budget: RetryBudget,
    now: Instant,
    *,
    router: LeastTimeRouter,
) -> Rejection | None:
    """Returns a rejection if the queue is full, unless the request can be sent without queueing."""
    service_class, tenant = request.service_class, request.ticket.tenant
    held, held_max = backlog.queued_in_class(service_class.name), service_class.queue_length_max
    own, own_max = backlog.queued_of_tenant(service_class.name, tenant), service_class.queue_length_per_tenant_max
    if (held < held_max and own < own_max) or router.choose(request, request.pools, fleet) is not None:
        return None
    wait = class_drain_time(request, backlog, retry_budget, now)
    if own >= own_max:
        text = f'tenant "{tenant}" has {own} of {own_max} requests queued in class "{service_class.name}"'
        setting = "queue_length_per_tenant_max"
    else:
        text, setting = f'class "{service_class.name}" has {held} of {held_max} requests queued', "queue_length_max"
    reason = f"{text}; retry in {format_seconds(wait)} or raise {setting}"
    return Rejection(Outcome.QUEUE_FULL, reason, service_class, wait)


def retry_rejection(request: Request, backlog: Backlog, retry_budget: RetryBudget, now: Instant) -> Rejection | None:
    """Returns a rejection if the request is a client retry and its tenant's retry budget is exhausted.

    The gateway's own retries use the same budget.
    """
    ticket = request.ticket
    if not ticket.client_retries or retry_budget.allows_for_tenant(ticket.tenant):
        return None
    reason = f'tenant "{ticket.tenant}" has used up its retry budget; requests that are not retries refill it'
    return Rejection(
        Outcome.RETRY_BUDGET_EXHAUSTED,
        reason,
        request.service_class,
        class_drain_time(request, backlog, retry_budget, now),
    )


def class_drain_time(request: Request, backlog: Backlog, retry_budget: RetryBudget, now: Instant) -> Duration:
    """Returns the expected time to drain the queue of the request's class plus one more request."""
    return drain_time(backlog.queued_in_class(request.service_class.name), request.pools, retry_budget, now)


def expected_wait(pools: tuple[PoolName, ...], fleet: FleetState, rules: Rules, holds: Holds, now: Instant) -> Duration:
    """Returns the time until one of these pools may be live.

    If no endpoint is known, this is the usual cold start time.
    """
    waits: list[Duration] = []
    for name in pools:
        known, empty = fleet.pools.get(name), rules.scales_to_zero(name)
        usual = rules.pools[name].cold_start_ns if empty else rules.warm_up_ns(name)
        start = holds.expected_ns(name, pools, usual, now) if empty else usual
        wait = None if known is None else known.next_available_ns(now, start)
        if wait is not None or empty:
            waits.append(start if wait is None else wait)
    return min(waits, default=rules.warm_up_ns(pools[0]))


def _next_available_ns(pools: tuple[PoolName, ...], fleet: FleetState, rules: Rules, now: Instant) -> Duration | None:
    waits = [
        wait
        for name in pools
        if (pool := fleet.pools.get(name)) is not None
        and (wait := pool.next_available_ns(now, rules.warm_up_ns(name))) is not None
    ]
    return min(waits, default=None)


def _unknown_tenant_rejection(ticket: Ticket, rules: Rules) -> Rejection:
    if not rules.policy.tenants_loaded:
        reason = f'tenant "{ticket.tenant}" cannot be verified until all tenants are loaded; retry in 1 s'
        return Rejection(Outcome.KEY_UNVERIFIED, reason, retry_after_ns=SECOND)
    return Rejection(Outcome.UNAUTHORIZED, f'unknown tenant "{ticket.tenant}"; check the API key')


def _no_pool_rejection(model: Model, service_class: ServiceClass, tenant: Tenant, rules: Rules) -> Rejection:
    """Returns the rejection of a request whose class may use none of the model's pools."""
    reason = f'no pool serves model "{model.name}" for class "{service_class.name}"; use another class'
    if rules.hosted_pools and rules.stays_local(service_class, tenant.id):
        reason = f'no local pool serves model "{model.name}" for class "{service_class.name}", '
        reason += "and data_residency: local excludes hosted pools; use another model"
    return Rejection(Outcome.FORBIDDEN, reason, service_class)


def _prompt_length_rejection(ticket: Ticket, service_class: ServiceClass) -> Rejection | None:
    """Returns a rejection if the prompt exceeds the class's limit, after trimming if the class trims prompts."""
    caps, tokens = service_class.caps, ticket.prompt_bytes // BYTES_PER_TOKEN
    if caps.prompt_tokens is None or tokens <= caps.prompt_tokens:
        return None
    length = f"the prompt has about {tokens} tokens"
    if caps.trim_prompt:
        kept = ticket.untrimmable_bytes // BYTES_PER_TOKEN
        if kept <= caps.prompt_tokens:
            return None
        length += f", of which {kept} cannot be trimmed (instructions and the last turn)"
    reason = f'{length}, but class "{service_class.name}" allows at most {caps.prompt_tokens}; '
    reason += "shorten the prompt or use another class"
    return Rejection(Outcome.REQUEST_TOO_LARGE, reason, service_class)


def _prompt_count_rejection(ticket: Ticket, service_class: ServiceClass) -> Rejection | None:
    """Returns a rejection if the class does not allow this many prompts. Engines run each prompt as a sequence."""
    caps, field, counted = service_class.caps, "prompts", f"{ticket.prompts} prompts"
    asked, most = ticket.answers(caps.n), caps.prompts
    if ticket.api in APIS_WITHOUT_OUTPUT:
        field, counted, asked, most = "inputs", f"{ticket.prompts} inputs", ticket.prompts, caps.inputs
    elif asked > ticket.prompts:
        counted += f" with {asked // ticket.prompts} choices each"
    if most is None or asked <= most:
        return None
    reason = f'the request has {counted}, but class "{service_class.name}" allows at most {most} per request'
    reason += f"; split the request or raise caps.{field}"
    return Rejection(Outcome.REQUEST_TOO_LARGE, reason, service_class)


def _tier_criteria(ticket: Ticket, service_class: ServiceClass, tenant: Tenant) -> TierCriteria:
    return TierCriteria(service_class, tenant, ticket.prompt_bytes // BYTES_PER_TOKEN, ticket.model_tier)


def _may_use_model(tenant: Tenant, model: Model) -> bool:
    return not tenant.models or model.name in tenant.models


def _unknown_class_rejection(ticket: Ticket, rules: Rules) -> Rejection:
    if ticket.requested_class is None and (tier := ticket.service_tier) is not None and tier not in AUTO_SERVICE_TIERS:
        known = ", ".join((*AUTO_SERVICE_TIERS, *sorted(rules.service_tiers)))
        return Rejection(Outcome.INVALID_REQUEST, f'unknown service_tier "{tier}"; known values: {known}')
    if ticket.requested_class is None:
        return Rejection(Outcome.FORBIDDEN, "no class accepts requests without a class or service_tier; specify one")
    known = ", ".join(rules.classes) or "none"
    return Rejection(
        Outcome.INVALID_REQUEST, f'class "{ticket.requested_class}" does not exist; available classes: {known}'
    )
