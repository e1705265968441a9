"""Which protections against overload are on, which are still learning, and which are off?

Each one names the reason for its state and the setting that changes it. `headgate check` knows the file alone;
`headgate doctor` also passes the limits that engines report.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from headgate.config.quantities import duration_text
from headgate.config.settings import PoolSettings, Settings
from headgate.model.limits import Limits
from headgate.model.policy import Policy, Pool, Promise, ServiceClass
from headgate.model.units import PoolName


class State(StrEnum):
    ON = "on"
    LEARNING = "learning"
    """On, but nothing is rejected by it until the gateway has learned what it needs."""
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Protection:
    name: str
    scope: str
    """The pool or class that it holds for; empty for the whole gateway."""
    state: State
    reason: str
    setting: str
    """The setting that changes it."""

    @property
    def line(self) -> str:
        where = f"{self.name}, {self.scope}" if self.scope else self.name
        how = f"; set {self.setting}" if self.state is State.OFF else f" ({self.setting})"
        return f"{self.state:<9} {where}: {self.reason}{how}"


_NO_CAPACITIES: Mapping[PoolName, int] = MappingProxyType({})


def protections(
    settings: Settings, *, readable: Collection[str] = (), reported: Mapping[PoolName, int] = _NO_CAPACITIES
) -> tuple[Protection, ...]:
    """`readable` are the engines that report their KV capacity, `reported` what those of each pool did report."""
    policy, pools = settings.policy, {each.name: each for each in settings.policy.pools}
    found: list[Protection] = []
    for pool in settings.pools:
        kv_tokens = reported.get(pool.name)
        known, is_readable = pools[pool.name], pool.engine in readable
        found += _of_pool(pool, known, policy, settings, readable=is_readable, kv_tokens=kv_tokens)
    for service_class in policy.classes:
        found += _of_class(service_class, settings)
    return (*found, *_of_gateway(settings))


def protection_lines(found: tuple[Protection, ...]) -> Iterator[str]:
    yield "protections:"
    yield from (f"  {each.line}" for each in found)


def as_rows(found: tuple[Protection, ...]) -> list[dict[str, str]]:
    return [
        {
            "name": each.name,
            "scope": each.scope,
            "state": each.state.value,
            "reason": each.reason,
            "setting": each.setting,
        }
        for each in found
    ]


# Pools


def _of_pool(
    pool: PoolSettings, known: Pool, policy: Policy, settings: Settings, *, readable: bool, kv_tokens: int | None
) -> Iterator[Protection]:
    scope, at = f"pool {pool.name}", f"pools.{pool.name}"
    yield Protection("in-flight limit", scope, State.ON, _in_flight(pool), f"{at}.in_flight_max")
    yield _memory(known, scope, at, readable=readable, kv_tokens=kv_tokens)
    yield _token_time(known.name, scope, policy)
    yield _speed(known, settings, scope, at)
    yield _autoscaling(pool, scope, at)


def _in_flight(pool: PoolSettings) -> str:
    limits = sorted({each.in_flight_max for each in pool.endpoints})
    if not limits:
        return "each endpoint of the fleet gets its limit when it joins"
    few = f"{limits[0]:,}" if len(limits) == 1 else f"{limits[0]:,} to {limits[-1]:,}"
    return f"an endpoint gets {few} requests at once; further requests wait in the gateway"


def _memory(known: Pool, scope: str, at: str, *, readable: bool, kv_tokens: int | None) -> Protection:
    name, setting = "KV memory", f"{at}.kv_tokens"
    capacity = kv_tokens if known.kv_tokens is None else known.kv_tokens
    if capacity is not None:
        source = "as the engine reports" if known.kv_tokens is None else "as configured"
        reason = f"requests that do not fit into {capacity:,} KV tokens, {source}, wait in the gateway"
        return Protection(name, scope, State.ON, reason, setting)
    if readable:
        reason = "the KV capacity is read from each engine; until then memory is not counted"
        return Protection(name, scope, State.LEARNING, reason, setting)
    reason = "the KV capacity of the engines is not known, so memory is not counted"
    return Protection(name, scope, State.OFF, reason, setting)


def _token_time(pool: PoolName, scope: str, policy: Policy) -> Protection:
    name, promised = "time per token", _strictest(pool, policy)
    if promised is None or promised.tpot_ns is None:
        return Protection(name, scope, State.OFF, "no class that uses the pool has a tpot", "classes.NAME.tpot")
    reason = f"endpoints are filled as far as class {promised.name} keeps {duration_text(promised.tpot_ns)} per token"
    return Protection(name, scope, State.ON, reason, f"classes.{promised.name}.tpot")


def _strictest(pool: PoolName, policy: Policy) -> ServiceClass | None:
    """The class with the shortest time per token at this pool."""
    promised = [each for each in policy.classes if each.tpot_ns is not None and (not each.pools or pool in each.pools)]
    return min(promised, key=lambda each: each.tpot_ns or 0, default=None)


def _speed(known: Pool, settings: Settings, scope: str, at: str) -> Protection:
    name, setting = "speed estimate", f"{at}.speed"
    if known.speed_assumed:
        reason = "starts from a guess; each endpoint's speed is learned from its traffic"
        if settings.cell is None:
            kept = "is kept across restarts" if settings.state_folder else "is lost with a restart; set state_folder"
            reason += f" and {kept}"
        return Protection(name, scope, State.LEARNING, reason, setting)
    return Protection(name, scope, State.ON, "starts from the configured speed and follows the traffic", setting)


def _autoscaling(pool: PoolSettings, scope: str, at: str) -> Protection:
    name, setting = "autoscaling signal", f"{at}.scaling"
    if pool.scaling is None:
        reason = "the number of endpoints does not follow the load"
        return Protection(name, scope, State.OFF, reason, setting)
    reason = f"asks for {pool.scaling.endpoints_min} to {pool.scaling.endpoints_max} endpoints"
    return Protection(name, scope, State.ON, reason, setting)


# Classes


def _of_class(service_class: ServiceClass, settings: Settings) -> Iterator[Protection]:
    scope, at = f"class {service_class.name}", f"classes.{service_class.name}"
    wait = duration_text(service_class.queue_wait_ns_max)
    reason = f"{service_class.queue_length_max:,} requests wait at most, each for {wait} at most"
    yield Protection("queue limit", scope, State.ON, reason, f"{at}.queue_length_max, {at}.queue_wait_max")
    yield _deadline(service_class, settings, scope, at)
    if service_class.hedges:
        reason = "a second attempt is made while the first is unusually slow"
        yield Protection("hedging", scope, State.ON, reason, f"{at}.hedges")


def _deadline(service_class: ServiceClass, settings: Settings, scope: str, at: str) -> Protection:
    name = "deadline admission"
    if settings.policy.admission.certainty_percent is None:
        reason = "no request is rejected for its expected wait"
        return Protection(name, scope, State.OFF, reason, "admission.certainty_percent")
    if service_class.ttft_ns is None:
        wait = duration_text(service_class.queue_wait_ns_max)
        reason = f"no ttft, so only requests that would wait longer than {wait} are rejected on arrival"
        return Protection(name, scope, State.OFF, reason, f"{at}.ttft")
    reason = f"requests that cannot begin within {duration_text(service_class.ttft_ns)} are rejected on arrival"
    if any(each.speed_assumed for each in _pools_of(service_class, settings.policy)):
        reason += ", once the speed of the engines is learned"
        return Protection(name, scope, State.LEARNING, reason, f"{at}.ttft")
    return Protection(name, scope, State.ON, reason, f"{at}.ttft")


def _pools_of(service_class: ServiceClass, policy: Policy) -> list[Pool]:
    return [each for each in policy.pools if not service_class.pools or each.name in service_class.pools]


# The gateway


def _of_gateway(settings: Settings) -> Iterator[Protection]:
    policy = settings.policy
    yield _degradation(policy)
    yield _shedding(policy)
    retry, health = policy.retry, policy.health
    reason = f"at most {retry.attempts_max} attempts a request, and {retry.pool_percent} % extra attempts at a pool"
    yield Protection("retry budget", "", State.ON, reason, "retry")
    reason = f"{health.failures_max} failures in a row eject an endpoint for {duration_text(health.eject_ns)} at first"
    yield Protection("outlier ejection", "", State.ON, reason, "health")
    yield _tenant_limits(settings)
    yield _budgets(policy)


def _degradation(policy: Policy) -> Protection:
    name = "degradation"
    if not policy.ladder.enabled:
        return Protection(name, "", State.OFF, "switched off", "ladder.enabled")
    measured = [each.name for each in policy.classes if each.ttft_ns and each.promise is not Promise.COST]
    if not measured:
        reason = "no class has a ttft, so overload is not measured and degradation never starts"
        return Protection(name, "", State.OFF, reason, "classes.NAME.ttft")
    reason = f"starts when classes {', '.join(measured)} are about to miss their ttft"
    return Protection(name, "", State.ON, reason, "ladder")


def _shedding(policy: Policy) -> Protection:
    name, setting = "proportional shedding", "shedding.enabled"
    if policy.shedding.enabled:
        reason = "under overload, a share of the requests is rejected on arrival, the lowest priority first"
        return Protection(name, "", State.ON, reason, setting)
    return Protection(name, "", State.OFF, "switched off; degradation rejects by plan instead", setting)


def _tenant_limits(settings: Settings) -> Protection:
    name, setting = "tenant limits", "tenants.NAME.limits"
    tenants = settings.policy.tenants
    limited = [each for each in tenants if each.limits != Limits()]
    if not limited:
        reason = "no tenant of the file has limits; fairness among tenants holds without them"
        return Protection(name, "", State.OFF, reason, setting)
    return Protection(name, "", State.ON, f"{len(limited):,} of {len(tenants):,} tenants have limits", setting)


def _budgets(policy: Policy) -> Protection:
    name, owners = "budgets", [*policy.tenants, *policy.classes]
    with_budget = sum(bool(each.budgets) for each in owners)
    if not with_budget:
        reason = "no tenant or class of the file has a budget"
        return Protection(name, "", State.OFF, reason, "tenants.NAME.budgets")
    return Protection(name, "", State.ON, f"{with_budget:,} tenants and classes have one", "tenants.NAME.budgets")
