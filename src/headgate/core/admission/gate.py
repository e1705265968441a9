"""May this request come in, and if not, what is the true reason?

The checks stand in the order in which a caller would want to hear about them: first what is
wrong with the request, then what its key may not do, then what we cannot do at the moment.
"""

from dataclasses import dataclass

from headgate.core.classify import classify
from headgate.core.routing.fleet import Fleet
from headgate.core.rules import Rules
from headgate.model.outcome import Outcome
from headgate.model.policy import Model, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.ticket import Ticket
from headgate.model.units import Duration, Instant, PoolName


@dataclass(frozen=True, slots=True)
class Refusal:
    outcome: Outcome
    reason: str
    service_class: ServiceClass | None = None
    retry_after_ns: Duration | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    service_class: ServiceClass
    pools: tuple[PoolName, ...]


def judge(ticket: Ticket, rules: Rules) -> Admitted | Refusal:
    """What the policy alone says: who asks, for which class and model, and which pools serve it."""
    tenant = rules.tenants.get(ticket.tenant)
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
    pools = rules.route(model, service_class)
    if not pools:
        reason = f'no pool serves model "{model.name}" in class "{service_class.name}"; choose another class'
        return Refusal(Outcome.FORBIDDEN, reason, service_class)
    return Admitted(service_class, pools)


def servable(admitted: Admitted, fleet: Fleet, rules: Rules, now: Instant) -> Refusal | None:
    """Whether any endpoint takes work, or may do so before the class's patience ends.

    An endpoint that is starting may be ready at any moment, so it is waited for.
    """
    if fleet.live(admitted.pools) or fleet.warming(admitted.pools):
        return None
    coming = _soonest(admitted.pools, fleet, rules, now)
    if coming is not None and coming <= admitted.service_class.queue_wait_ns_max:
        return None
    names = ", ".join(admitted.pools)
    reason = f"no endpoint of pool {names} can serve at the moment; see their state in the admin listener's /status"
    wait = expected_wait(admitted.pools, fleet, rules, now)
    return Refusal(Outcome.NO_ENDPOINTS, reason, admitted.service_class, wait)


def expected_wait(pools: tuple[PoolName, ...], fleet: Fleet, rules: Rules, now: Instant) -> Duration:
    """How long until one of these pools may take work. With no endpoint in sight, as long as one needs to start."""
    coming = _soonest(pools, fleet, rules, now)
    return rules.warm_up_ns(pools[0]) if coming is None else coming


def _soonest(pools: tuple[PoolName, ...], fleet: Fleet, rules: Rules, now: Instant) -> Duration | None:
    waits = [
        wait
        for name in pools
        if (pool := fleet.pools.get(name)) is not None
        and (wait := pool.soonest(now, rules.warm_up_ns(name))) is not None
    ]
    return min(waits, default=None)


def _may_use_model(tenant: Tenant, model: Model) -> bool:
    return not tenant.models or model.name in tenant.models


def _no_such_class(ticket: Ticket, rules: Rules) -> Refusal:
    if ticket.class_named is None:
        return Refusal(Outcome.FORBIDDEN, "no class takes requests that name neither a class nor a tier; name one")
    known = ", ".join(rules.classes) or "none"
    return Refusal(Outcome.INVALID, f'class "{ticket.class_named}" does not exist; the classes are: {known}')
