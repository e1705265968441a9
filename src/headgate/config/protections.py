"""Overload protections: whether each is on, learning or off.

Each protection has a state, the reason for that state, and the setting that changes it. `headgate check` uses only the
file. `headgate doctor` also passes engine-reported limits.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from headgate.config.quantities import duration_text
from headgate.config.settings import PoolSettings, Settings
from headgate.model.limits import Limits
from headgate.model.policy import OptimizationGoal, Policy, Pool, ServiceClass
from headgate.model.units import PoolName


class ProtectionState(StrEnum):
    ON = "on"
    LEARNING = "learning"
    """The protection is on, but does not reject any requests until the gateway has learned the values it needs."""
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Protection:
    name: str
    scope: str
    """Pool or class to which the protection applies; empty for the whole gateway."""
    state: ProtectionState
    reason: str
    setting: str
    """Setting that changes the state."""

    @property
    def line(self) -> str:
        where = f"{self.name}, {self.scope}" if self.scope else self.name
        how = f"; set {self.setting}" if self.state is ProtectionState.OFF else f" ({self.setting})"
        return f"{self.state:<9} {where}: {self.reason}{how}"


_NO_CAPACITIES: Mapping[PoolName, int] = MappingProxyType({})


def protections(
    settings: Settings,
    *,
    kv_readable_engines: Collection[str] = (),
    reported_kv_tokens: Mapping[PoolName, int] = _NO_CAPACITIES,
) -> tuple[Protection, ...]:
    """All protections. `kv_readable_engines` are the engines that report their KV capacity.

    `reported_kv_tokens` is the reported capacity per pool.
    """
    policy, pools = settings.policy, {each.name: each for each in settings.policy.pools}
    found: list[Protection] = []
    for pool in settings.pools:
        kv_tokens = reported_kv_tokens.get(pool.name)
        known, is_readable = pools[pool.name], pool.engine in kv_readable_engines
        found += _pool_protections(pool, known, policy, settings, readable=is_readable, kv_tokens=kv_tokens)
    for service_class in policy.classes:
        found += _class_protections(service_class, settings)
    return (*found, *_gateway_protections(settings))


def protection_lines(found: tuple[Protection, ...]) -> Iterator[str]:
    yield "protections:"
    yield from (f"  {each.line}" for each in found)


def protection_rows(found: tuple[Protection, ...]) -> list[dict[str, str]]:
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


def _pool_protections(
    pool: PoolSettings, known: Pool, policy: Policy, settings: Settings, *, readable: bool, kv_tokens: int | None
) -> Iterator[Protection]:
    scope, at = f"pool {pool.name}", f"pools.{pool.name}"
    yield Protection("in-flight limit", scope, ProtectionState.ON, _in_flight(pool), f"{at}.in_flight_max")
    yield _memory(known, scope, at, readable=readable, kv_tokens=kv_tokens)
    yield _token_time(known.name, scope, policy)
    yield _speed(known, settings, scope, at)
    yield _autoscaling(pool, scope, at)


def _in_flight(pool: PoolSettings) -> str:
    limits = sorted({each.in_flight_max for each in pool.endpoints})
    if not limits:
        return "each endpoint of the fleet gets its limit when it is added"
    few = f"{limits[0]:,}" if len(limits) == 1 else f"{limits[0]:,} to {limits[-1]:,}"
    return f"an endpoint gets at most {few} concurrent requests; further requests wait in the gateway"


def _memory(known: Pool, scope: str, at: str, *, readable: bool, kv_tokens: int | None) -> Protection:
    name, setting = "KV memory", f"{at}.kv_tokens"
    capacity = kv_tokens if known.kv_tokens is None else known.kv_tokens
    if capacity is not None:
        source = "reported by the engine" if known.kv_tokens is None else "configured"
        reason = f"requests that do not fit into {capacity:,} KV tokens ({source}) wait in the gateway"
        return Protection(name, scope, ProtectionState.ON, reason, setting)
    if readable:
        reason = "the KV capacity is read from each engine; until it is known, memory is not counted"
        return Protection(name, scope, ProtectionState.LEARNING, reason, setting)
    reason = "the KV capacity of the engines is unknown, so memory is not counted"
    return Protection(name, scope, ProtectionState.OFF, reason, setting)


def _token_time(pool: PoolName, scope: str, policy: Policy) -> Protection:
    name, promised = "time per token", _strictest_tpot_class(pool, policy)
    if promised is None or promised.tpot_ns is None:
        return Protection(
            name, scope, ProtectionState.OFF, "no class that uses the pool has a tpot", "classes.NAME.tpot"
        )
    tpot = duration_text(promised.tpot_ns)
    reason = f"endpoints get only as many requests as allow {tpot} per token for class {promised.name}"
    return Protection(name, scope, ProtectionState.ON, reason, f"classes.{promised.name}.tpot")


def _strictest_tpot_class(pool: PoolName, policy: Policy) -> ServiceClass | None:
    """The class with the shortest TPOT target among those that may use this pool."""
    promised = [each for each in policy.classes if each.tpot_ns is not None and (not each.pools or pool in each.pools)]
    return min(promised, key=lambda each: each.tpot_ns or 0, default=None)


def _speed(known: Pool, settings: Settings, scope: str, at: str) -> Protection:
    name, setting = "speed estimate", f"{at}.speed"
    if known.speed_assumed:
        reason = "starts from a guess; each endpoint's speed is learned from its traffic"
        if settings.cell is None:
            kept = (
                "is kept across restarts"
                if settings.state_directory
                else "is lost on restart; set state_directory to keep it"
            )
            reason += f" and {kept}"
        return Protection(name, scope, ProtectionState.LEARNING, reason, setting)
    return Protection(
        name, scope, ProtectionState.ON, "starts at the configured speed, then adapts to observed traffic", setting
    )


def _autoscaling(pool: PoolSettings, scope: str, at: str) -> Protection:
    name, setting = "autoscaling signal", f"{at}.scaling"
    if pool.scaling is None:
        reason = "the number of endpoints does not change with load"
        return Protection(name, scope, ProtectionState.OFF, reason, setting)
    reason = f"requests {pool.scaling.endpoints_min} to {pool.scaling.endpoints_max} endpoints"
    return Protection(name, scope, ProtectionState.ON, reason, setting)


# Classes


def _class_protections(service_class: ServiceClass, settings: Settings) -> Iterator[Protection]:
    scope, at = f"class {service_class.name}", f"classes.{service_class.name}"
    wait = duration_text(service_class.queue_wait_ns_max)
    reason = f"at most {service_class.queue_length_max:,} requests wait, each for at most {wait}"
    yield Protection("queue limit", scope, ProtectionState.ON, reason, f"{at}.queue_length_max, {at}.queue_wait_max")
    yield _deadline(service_class, settings, scope, at)
    if service_class.hedging:
        reason = "a second attempt starts if the first is unusually slow"
        yield Protection("hedging", scope, ProtectionState.ON, reason, f"{at}.hedging")


def _deadline(service_class: ServiceClass, settings: Settings, scope: str, at: str) -> Protection:
    name = "deadline admission"
    if settings.policy.admission.predicted_wait_percent_max is None:
        reason = "requests are never rejected because of their expected wait"
        return Protection(name, scope, ProtectionState.OFF, reason, "admission.predicted_wait_percent_max")
    if service_class.latency_target_ns is None:
        wait = duration_text(service_class.queue_wait_ns_max)
        reason = f"no ttft and no e2e, so only requests that would wait longer than {wait} are rejected on arrival"
        return Protection(name, scope, ProtectionState.OFF, reason, f"{at}.ttft")
    limits, setting = list[str](), f"{at}.ttft"
    if service_class.ttft_ns is not None:
        limits.append(f"start within {duration_text(service_class.ttft_ns)}")
    if service_class.e2e_ns is not None:
        limits.append(f"complete within {duration_text(service_class.e2e_ns)}")
        setting = f"{at}.e2e" if service_class.ttft_ns is None else f"{at}.ttft, {at}.e2e"
    reason = f"requests that cannot {' and '.join(limits)} are rejected on arrival"
    if any(each.speed_assumed for each in _pools_of(service_class, settings.policy)):
        reason += ", once the engines' speed has been learned"
        return Protection(name, scope, ProtectionState.LEARNING, reason, setting)
    return Protection(name, scope, ProtectionState.ON, reason, setting)


def _pools_of(service_class: ServiceClass, policy: Policy) -> list[Pool]:
    return [each for each in policy.pools if not service_class.pools or each.name in service_class.pools]


# The gateway


def _gateway_protections(settings: Settings) -> Iterator[Protection]:
    policy = settings.policy
    yield _degradation(policy)
    yield _shedding(policy)
    retry, health = policy.retry, policy.health
    reason = (
        f"at most {retry.attempts_max} attempts per request, and {retry.pool_budget_percent} % extra attempts per pool"
    )
    yield Protection("retry budget", "", ProtectionState.ON, reason, "retry")
    ejection = duration_text(health.ejection_ns)
    reason = f"{health.consecutive_failures_max} consecutive failures eject an endpoint, at first for {ejection}"
    yield Protection("outlier ejection", "", ProtectionState.ON, reason, "health")
    yield _tenant_limits(settings)
    yield _budgets(policy)


def _degradation(policy: Policy) -> Protection:
    name = "degradation"
    if not policy.degradation.enabled:
        return Protection(name, "", ProtectionState.OFF, "switched off", "degradation.enabled")
    latency = (each for each in policy.classes if each.optimize_for is not OptimizationGoal.COST)
    measured = [each.name for each in latency if each.latency_target_ns]
    if not measured:
        reason = "no class has a ttft or e2e, so overload is not measured and degradation never starts"
        return Protection(name, "", ProtectionState.OFF, reason, "classes.NAME.ttft")
    reason = f"starts when classes {', '.join(measured)} are about to miss their ttft or e2e"
    return Protection(name, "", ProtectionState.ON, reason, "degradation")


def _shedding(policy: Policy) -> Protection:
    name, setting = "proportional shedding", "shedding.enabled"
    if policy.shedding.enabled:
        reason = "under overload, some requests are rejected on arrival, lowest priority first"
        return Protection(name, "", ProtectionState.ON, reason, setting)
    return Protection(name, "", ProtectionState.OFF, "disabled; degradation rejects requests by plan instead", setting)


def _tenant_limits(settings: Settings) -> Protection:
    name, setting = "tenant limits", "tenants.NAME.limits"
    tenants = settings.policy.tenants
    limited = [each for each in tenants if each.limits != Limits()]
    if not limited:
        reason = "no tenant in the file has limits; fair sharing between tenants works without them"
        return Protection(name, "", ProtectionState.OFF, reason, setting)
    return Protection(
        name, "", ProtectionState.ON, f"{len(limited):,} of {len(tenants):,} tenants have limits", setting
    )


def _budgets(policy: Policy) -> Protection:
    name, owners = "budgets", [*policy.tenants, *policy.classes]
    with_budget = sum(bool(each.budgets) for each in owners)
    if not with_budget:
        reason = "no tenant or class in the file has a budget"
        return Protection(name, "", ProtectionState.OFF, reason, "tenants.NAME.budgets")
    return Protection(
        name, "", ProtectionState.ON, f"{with_budget:,} tenants and classes have a budget", "tenants.NAME.budgets"
    )
