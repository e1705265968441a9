"""May this request come in, and if not, what is the true reason?

The checks stand in the order in which a caller would want to hear about them: first what is
wrong with the request, then what its key may not do, then what we cannot do at the moment.
"""

from dataclasses import dataclass
from typing import NamedTuple

from headgate.core.admission.budgets import Budgets
from headgate.core.admission.limits import TenantLimits
from headgate.core.admission.retry_after import drain_time
from headgate.core.classify import classify
from headgate.core.measure import meant
from headgate.core.queues.bands import Backlog
from headgate.core.queues.holds import Holds
from headgate.core.retry_budget import RetryBudget
from headgate.core.routing.fleet import Fleet
from headgate.core.routing.least_seconds import LeastSeconds
from headgate.core.routing.rungs import Asker, chosen, rung_names, usable
from headgate.core.rules import Rules
from headgate.core.state import Request
from headgate.model.outcome import Outcome
from headgate.model.policy import NO_TIER_CHOICE, Model, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.ticket import WITHOUT_OUTPUT, Ticket
from headgate.model.units import BYTES_PER_TOKEN, SECOND, Duration, Instant, ModelName, PoolName, RequestId, seconds


@dataclass(frozen=True, slots=True)
class Refusal:
    outcome: Outcome
    reason: str
    service_class: ServiceClass | None = None
    retry_after_ns: Duration | None = None


class Admitted(NamedTuple):
    service_class: ServiceClass
    pools: tuple[PoolName, ...]
    model: ModelName
    """Whose pools these are."""


def judge(ticket: Ticket, rules: Rules) -> Admitted | Refusal:
    """What the policy alone says: who asks, for which class and model, and which pools serve it."""
    tenant = rules.tenants.get(ticket.tenant)
    if tenant is None and not rules.policy.tenants_whole:
        reason = f'tenant "{ticket.tenant}" is not known yet; try again when all tenants have been read'
        return Refusal(Outcome.UNVERIFIED, reason, retry_after_ns=SECOND)
    if tenant is None:
        return Refusal(Outcome.UNAUTHORIZED, f'tenant "{ticket.tenant}" is not known; check the API key')
    service_class = classify(ticket, rules)
    if service_class is None:
        return _no_such_class(ticket, rules)
    model = rules.models.get(ticket.model)
    if model is None or not _may_use_model(tenant, model):
        # A model that the key may not use is not shown to exist.
        reason = f'model "{ticket.model}" does not exist or this key may not use it; GET /v1/models lists those it may'
        return Refusal(Outcome.MODEL_NOT_FOUND, reason, service_class)
    if tenant.classes and service_class.name not in tenant.classes:
        allowed = ", ".join(tenant.classes)
        reason = f'this key may not use class "{service_class.name}"; it may use: {allowed}'
        return Refusal(Outcome.FORBIDDEN, reason, service_class)
    if ticket.rung is not None and ticket.rung not in rung_names(model):
        known = ", ".join(rung_names(model)) or "none"
        reason = f'model "{model.name}" has no rung "{ticket.rung}"; its rungs are: {known}'
        return Refusal(Outcome.INVALID, reason, service_class)
    pools = chosen(model, _asker(ticket, service_class, tenant)) if model.rungs else usable(model.pools, service_class)
    if not pools:
        reason = f'no pool serves model "{model.name}" in class "{service_class.name}"; choose another class'
        return Refusal(Outcome.FORBIDDEN, reason, service_class)
    refusal = _too_long(ticket, service_class) or _too_many_prompts(ticket, service_class)
    return refusal or Admitted(service_class, pools, model.name)


def instead(ticket: Ticket, service_class: ServiceClass, fleet: Fleet, rules: Rules) -> Admitted | None:
    """Of the models that its own falls back to, and that its key may use, the first that can serve it."""
    asker = _asker(ticket, service_class, rules.tenants[ticket.tenant])
    for name in rules.models[ticket.model].fallbacks:
        other = rules.models.get(name)
        if other is not None and _may_use_model(asker.tenant, other) and fleet.live(pools := chosen(other, asker)):
            return Admitted(service_class, pools, other.name)
    return None


def late(request: Request, now: Instant) -> Refusal | None:
    """Whether the caller's deadline has passed on the way here."""
    if request.deadline is None or not request.deadline.passed(now):
        return None
    return Refusal(Outcome.TOO_LATE, request.deadline.missed("on its arrival"), request.service_class)


def duplicate(first: RequestId | None, request: Request) -> Refusal | None:
    """Whether its tenant has a request of the same Idempotency-Key open: the `first`."""
    if first is None:
        return None
    reason = f"request {first} came with the same Idempotency-Key and has not ended; wait for it or use another key"
    return Refusal(Outcome.DUPLICATE, reason, request.service_class, SECOND)


def quarantined(request: Request, left_ns: Duration | None) -> Refusal | None:
    """The rejection of a quarantined request: the same body of the tenant failed on endpoints that serve others."""
    if left_ns is None:
        return None
    reason = f"the same request failed on two endpoints that serve others; it is not sent again for {seconds(left_ns)}"
    return Refusal(Outcome.QUARANTINED, reason, request.service_class, left_ns)


def startable(service_class: ServiceClass, pools: tuple[PoolName, ...], fleet: Fleet, rules: Rules) -> PoolName | None:
    """The pool for whose first endpoint a request of this class may be held: rather one where it is starting."""
    if service_class.start_wait_ns is None:
        return None
    empty = [name for name in pools if rules.may_be_empty(name)]
    starting = [name for name in empty if fleet.warming((name,))]
    return next(iter(starting or empty), None)


def no_hold(
    request: Request, pool: PoolName, backlog: Backlog, fleet: Fleet, rules: Rules, *, holds: Holds, now: Instant
) -> Refusal | None:
    """Whether as many are held for this pool as may be."""
    held, held_max = backlog.held_for(pool), rules.pools[pool].hold_max
    if held < held_max:
        return None
    wait = expected_wait(request.pools, fleet, rules, holds, now)
    reason = (
        f"{held} of {held_max} requests are held until an endpoint of pool {pool} has started, "
        f"in about {seconds(wait)}; come back then, or raise its scaling.hold_max"
    )
    return Refusal(Outcome.NO_ENDPOINTS, reason, request.service_class, wait)


def servable(
    service_class: ServiceClass, pools: tuple[PoolName, ...], fleet: Fleet, rules: Rules, *, holds: Holds, now: Instant
) -> Refusal | None:
    """Whether any endpoint takes work, or may do so before the class's patience ends.

    An endpoint that is starting may be ready at any moment, so it is waited for.
    """
    if fleet.live(pools) or fleet.warming(pools) or startable(service_class, pools, fleet, rules) is not None:
        return None
    coming = _soonest(pools, fleet, rules, now)
    if coming is not None and coming <= service_class.queue_wait_ns_max:
        return None
    names, wait = ", ".join(pools), expected_wait(pools, fleet, rules, holds, now)
    reason = f"no endpoint of pool {names} can serve at the moment; "
    if any(rules.may_be_empty(name) for name in pools):
        reason += f'one starts in about {seconds(wait)}, and class "{service_class.name}" has no start_wait for that'
    else:
        reason += "see their state in the admin listener's /status"
    return Refusal(Outcome.NO_ENDPOINTS, reason, service_class, wait)


def again(request: Request, fleet: Fleet, rules: Rules, *, holds: Holds, now: Instant) -> Admitted | Refusal:
    """Where it may be tried again: at its own pools or, if none of them takes work, where it falls back to."""
    ticket = rules.without_gone_names(request.ticket)
    verdict = judge(ticket, rules)
    if isinstance(verdict, Refusal):
        return verdict
    pools = meant(request, verdict.pools, fleet, rules)
    if fleet.live(pools):
        return verdict
    other = instead(ticket, verdict.service_class, fleet, rules)
    return other or servable(verdict.service_class, pools, fleet, rules, holds=holds, now=now) or verdict


def over_limit(request: Request, limits: TenantLimits, now: Instant) -> Refusal | None:
    """Whether it does not fit a limit of its tenant, at any level of the tenant's path."""
    short = limits.shortage(request.ticket, request.prompt_tokens, request.output_tokens, now)
    return None if short is None else Refusal(short.outcome, short.reason, request.service_class, short.wait_ns)


def over_budget(request: Request, budgets: Budgets, now: Instant) -> Refusal | None:
    """Whether what it may cost at most is more than what is left, of any budget that it touches."""
    short = budgets.shortage(request, now)
    return None if short is None else Refusal(short.outcome, short.reason, request.service_class, short.wait_ns)


def no_place(
    request: Request, fleet: Fleet, backlog: Backlog, budget: RetryBudget, now: Instant, *, router: LeastSeconds
) -> Refusal | None:
    """Whether its queue is full. The bounds of the queue hold for those who would have to wait in it."""
    service_class, tenant = request.service_class, request.ticket.tenant
    held, held_max = backlog.in_class(service_class.name), service_class.queue_length_max
    own, own_max = backlog.of_tenant(service_class.name, tenant), service_class.queue_length_per_tenant_max
    if (held < held_max and own < own_max) or router.choose(request, request.pools, fleet) is not None:
        return None
    wait = drain(request, backlog, budget, now)
    if own >= own_max:
        text, setting = f'tenant "{tenant}" holds {own} of {own_max}', "queue_length_per_tenant_max"
    else:
        text, setting = f"there are {held} of {held_max}", "queue_length_max"
    reason = f'{text} queued requests in class "{service_class.name}"; wait {seconds(wait)} or raise {setting}'
    return Refusal(Outcome.QUEUE_FULL, reason, service_class, wait)


def no_retry(request: Request, backlog: Backlog, budget: RetryBudget, now: Instant) -> Refusal | None:
    """Whether it is a retry that the caller makes and its tenant's retry budget, which ours need too, is empty."""
    ticket = request.ticket
    if not ticket.client_retries or budget.allows_for_tenant(ticket.tenant):
        return None
    reason = f'tenant "{ticket.tenant}" has used up its retry budget; it grows with requests that are not retries'
    return Refusal(Outcome.RETRY_REFUSED, reason, request.service_class, drain(request, backlog, budget, now))


def drain(request: Request, backlog: Backlog, budget: RetryBudget, now: Instant) -> Duration:
    """How long until those who wait in its class, and one more, have been taken."""
    return drain_time(backlog.in_class(request.service_class.name), request.pools, budget, now)


def expected_wait(pools: tuple[PoolName, ...], fleet: Fleet, rules: Rules, holds: Holds, now: Instant) -> Duration:
    """How long until one of these pools may take work. With no endpoint in sight, as long as one needs to start."""
    waits: list[Duration] = []
    for name in pools:
        known, empty = fleet.pools.get(name), rules.may_be_empty(name)
        usual = rules.pools[name].cold_start_ns if empty else rules.warm_up_ns(name)
        start = holds.expected_ns(name, pools, usual, now) if empty else usual
        wait = None if known is None else known.soonest(now, start)
        if wait is not None or empty:
            waits.append(start if wait is None else wait)
    return min(waits, default=rules.warm_up_ns(pools[0]))


def _soonest(pools: tuple[PoolName, ...], fleet: Fleet, rules: Rules, now: Instant) -> Duration | None:
    waits = [
        wait
        for name in pools
        if (pool := fleet.pools.get(name)) is not None
        and (wait := pool.soonest(now, rules.warm_up_ns(name))) is not None
    ]
    return min(waits, default=None)


def _too_long(ticket: Ticket, service_class: ServiceClass) -> Refusal | None:
    """Whether its prompt is beyond what the class takes, even after what may be left out of it has been."""
    caps, tokens = service_class.caps, ticket.prompt_bytes // BYTES_PER_TOKEN
    if caps.prompt_tokens is None or tokens <= caps.prompt_tokens:
        return None
    length = f"the prompt has about {tokens} tokens"
    if caps.trims_prompt:
        kept = ticket.prompt_bytes_kept // BYTES_PER_TOKEN
        if kept <= caps.prompt_tokens:
            return None
        length += f", of which {kept} cannot be left out (instructions and the last turn)"
    reason = f'{length}, and class "{service_class.name}" takes {caps.prompt_tokens}; shorten it or use another class'
    return Refusal(Outcome.TOO_LARGE, reason, service_class)


def _too_many_prompts(ticket: Ticket, service_class: ServiceClass) -> Refusal | None:
    """The rejection of an array with too many prompts for the class. An engine computes each as a sequence."""
    if ticket.prompts == 1:
        return None
    caps, field, counted = service_class.caps, "prompts", f"{ticket.prompts} prompts"
    asked, most = ticket.answers(caps.n), caps.prompts
    if ticket.api in WITHOUT_OUTPUT:
        field, counted, asked, most = "inputs", f"{ticket.prompts} inputs", ticket.prompts, caps.inputs
    elif asked > ticket.prompts:
        counted += f" with {asked // ticket.prompts} answers each"
    if most is None or asked <= most:
        return None
    reason = f'the request has {counted}, and class "{service_class.name}" takes {most} in one request'
    reason += f"; split it into several requests or raise caps.{field}"
    return Refusal(Outcome.TOO_LARGE, reason, service_class)


def _asker(ticket: Ticket, service_class: ServiceClass, tenant: Tenant) -> Asker:
    return Asker(service_class, tenant, ticket.prompt_bytes // BYTES_PER_TOKEN, ticket.rung)


def _may_use_model(tenant: Tenant, model: Model) -> bool:
    return not tenant.models or model.name in tenant.models


def _no_such_class(ticket: Ticket, rules: Rules) -> Refusal:
    if ticket.class_named is None and (tier := ticket.service_tier) is not None and tier not in NO_TIER_CHOICE:
        known = ", ".join((*NO_TIER_CHOICE, *sorted(rules.tiers)))
        return Refusal(Outcome.INVALID, f'service_tier "{tier}" is not known here; the known values are: {known}')
    if ticket.class_named is None:
        return Refusal(Outcome.FORBIDDEN, "no class takes requests that name neither a class nor a tier; name one")
    known = ", ".join(rules.classes) or "none"
    return Refusal(Outcome.INVALID, f'class "{ticket.class_named}" does not exist; the classes are: {known}')
