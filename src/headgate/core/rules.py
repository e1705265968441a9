"""The current policy, indexed by name."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from headgate.core.queues.fair_queue import DEFAULT_WEIGHT
from headgate.core.routing.endpoints import EndpointSettings
from headgate.core.routing.model_routes import with_route_weights
from headgate.core.routing.model_tiers import tier_names
from headgate.model.overrides import OperatorOverride
from headgate.model.policy import AUTO_SERVICE_TIERS, HeadroomRules, Model, Policy, Pool, ServiceClass
from headgate.model.routes import MIRROR_CLASS
from headgate.model.speed import EngineSpeed
from headgate.model.tenant import DataResidency, Tenant, levels_of, tenant_table
from headgate.model.ticket import Ticket
from headgate.model.units import SECOND, ClassName, Duration, ModelName, PoolName, TenantId

DISCOVERED_MAX: Final = 10_000
"""Maximum number of discovered models. Further adapters are ignored."""
_LONG_PERCENT: Final = 50
"""Prefill time from which on a prompt counts as long, in percent of the strictest e2e target of its pool."""
_PS_PER_NS: Final = 1_000
_WARM_UP_UNKNOWN = Duration(30 * SECOND)
_SPEED_UNKNOWN = EngineSpeed()
_UNLIMITED: Final = 1 << 40
_NO_POOL: Final = PoolName("")
"""Name that no pool has. A class that may use only this pool may use none."""


class Rules:
    __slots__ = (
        *("_accounts", "_discovered", "_local_classes", "adapters", "classes", "hash", "hosted_pools", "long_prompts"),
        *("min_shares", "mirror_classes", "models", "overflow_pools", "policy", "pools", "service_tiers", "tenants"),
    )

    def __init__(self, policy: Policy, policy_hash: str) -> None:
        self.policy = policy
        self.hash = policy_hash
        self.classes: dict[ClassName, ServiceClass] = {each.name: each for each in policy.classes}
        self.service_tiers: dict[str, ServiceClass] = {
            tier: each for each in reversed(policy.classes) for tier in each.service_tiers
        }
        """Class selected by each value of `service_tier`. The first class that lists a value applies."""
        self.tenants = tenant_table(policy.tenants).by_id
        self.models: dict[ModelName, Model] = with_route_weights(policy.models, policy.overrides)
        """Models, with the weights that operators have set for routes."""
        self.adapters: dict[ModelName, str] = {each.name: each.adapter for each in policy.models if each.adapter}
        """LoRA adapter of each model that has one, by its name in the engines."""
        self.pools: dict[PoolName, Pool] = {each.name: each for each in policy.pools}
        self.overflow_pools = frozenset(
            name for each in policy.models if each.overflow is not None for name in each.overflow.pools
        )
        """Overflow pools of all models."""
        self.hosted_pools = frozenset(each.name for each in policy.pools if each.hosted)
        """Pools of hosted providers."""
        self._local_classes: dict[ClassName, ServiceClass] = {}
        """Classes without the pools of hosted providers, by name."""
        self.min_shares = _min_shares(policy)
        self.long_prompts = _long_prompts(policy)
        """Minimum length of a prompt that counts as long, in tokens, for pools in which an e2e target lowers it."""
        mirrors = any(route.mirror is not None for model in policy.models for route in model.routes)
        self.mirror_classes: dict[ClassName, ServiceClass] = _mirror_classes(policy) if mirrors else {}
        """Class of the copies of each class's requests. Empty if no route has a mirror."""
        self._discovered: dict[ModelName, None] = {}
        """Models that are adapters and are not in the policy."""
        self._accounts: dict[TenantId, TenantId] = {}
        """Fairness account of each tenant. Only tenants in the policy are admitted, so this cache is bounded."""

    def set_route_weights(self, overrides: Iterable[OperatorOverride]) -> None:
        """Applies the weights that operators have set and that have not expired."""
        discovered = {name: self.models[name] for name in self._discovered}
        self.models = with_route_weights(self.policy.models, overrides) | discovered

    def class_for(self, service_class: ServiceClass, tenant: TenantId) -> ServiceClass:
        """Returns the class as it applies to a tenant.

        If the data of the tenant or the class must stay local, the class may not use the pools of hosted providers.
        Every choice of pools respects the pools of the class: routes, tiers, fallbacks, overflow, degradation, hedges.
        """
        if not self.hosted_pools or not self.stays_local(service_class, tenant):
            return service_class
        found = self._local_classes.get(service_class.name)
        if found is None:
            allowed = service_class.pools or tuple(self.pools)
            local = tuple(name for name in allowed if name not in self.hosted_pools) or (_NO_POOL,)
            found = self._local_classes[service_class.name] = replace(service_class, pools=local)
        return found

    def stays_local(self, service_class: ServiceClass, tenant: TenantId) -> bool:
        """Returns whether requests of this class and tenant may not be sent to a hosted provider."""
        if service_class.data_residency is DataResidency.LOCAL:
            return True
        levels = (self.tenants.get(each) for each in levels_of(tenant))
        return any(each is not None and each.data_residency is DataResidency.LOCAL for each in levels)

    def change_tenants(self, policy: Policy, policy_hash: str) -> Mapping[TenantId, Tenant | None]:
        """Applies a policy that differs only in its tenants. Returns the tenants that differ; None if removed."""
        before, self.tenants = self.tenants, tenant_table(policy.tenants).by_id
        self.policy, self.hash = policy, policy_hash
        changes = self.tenants.changes_since(before)
        for name, tenant in changes.items():
            if tenant is None:
                self._accounts.pop(name, None)
        return changes

    def discover_adapters(self, pool: PoolName, adapters: Iterable[str]) -> None:
        """Makes each of these adapters a model of the pool, if the pool discovers adapters.

        A discovered model stays until the policy changes, even if no endpoint holds the adapter any more.
        """
        known = self.pools.get(pool)
        if known is None or not known.discovers_adapters:
            return
        declared = {each.adapter for each in self.policy.models if pool in each.pools}
        for adapter in adapters:
            name = ModelName(adapter)
            model = self.models.get(name)
            if model is None and adapter not in declared and len(self._discovered) < DISCOVERED_MAX:
                self._discovered[name] = None
                self.adapters[name] = adapter
                self.models[name] = Model(name, (pool,), adapter=adapter)
            elif model is not None and name in self._discovered and pool not in model.pools:
                self.models[name] = replace(model, pools=(*model.pools, pool))

    def warm_up_ns(self, pool: PoolName) -> Duration:
        return self.pools[pool].warm_up_ns if pool in self.pools else _WARM_UP_UNKNOWN

    def scales_to_zero(self, pool: PoolName) -> bool:
        """Returns whether the pool can scale to zero and starts an endpoint on demand."""
        return pool in self.pools and self.pools[pool].hold_max > 0

    def speed(self, pool: PoolName) -> EngineSpeed:
        return self.pools[pool].speed if pool in self.pools else _SPEED_UNKNOWN

    def endpoint_settings(self, pool: PoolName) -> EndpointSettings:
        """Returns the settings that apply to all endpoints of a pool."""
        promised = [
            (each.tpot_ns, each.tpot_assumed)
            for each in self.policy.classes
            if each.tpot_ns is not None and (not each.pools or pool in each.pools)
        ]
        known = self.pools.get(pool)
        kv_tokens, assumed = (None, False) if known is None else (known.kv_tokens, known.speed_assumed)
        reserves = tuple(
            (each.name, each.reserve_percent)
            for each in self.policy.classes
            if each.reserve_percent and (not each.pools or pool in each.pools)
        )
        headroom = self._headroom(pool)
        if known is not None and known.hosted:
            # Many requests of others share a provider's engines, so only its number of requests in flight is limited.
            promised = []
            headroom = replace(
                headroom, pending_prefill_percent=_UNLIMITED, long_prompt_tokens=_UNLIMITED, long_lane_percent=100
            )
        return EndpointSettings(
            self.speed(pool),
            kv_tokens,
            min((tpot_ns for tpot_ns, _ in promised), default=None),
            headroom,
            reserves,
            self.policy.routing.cross_zone_penalty_ns,
            min((tpot_ns for tpot_ns, is_default in promised if not is_default), default=None),
            assumed,
            kv_tokens is not None,
            None if known is None else known.max_lora,
            self.policy.routing.adapter_load_penalty_ns,
            self.policy.routing.session_preference_ns,
            None if known is None else known.in_flight_replacement,
        )

    def _headroom(self, pool: PoolName) -> HeadroomRules:
        rules = self.policy.headroom
        return replace(rules, long_prompt_tokens=self.long_prompts[pool]) if pool in self.long_prompts else rules

    def account(self, tenant: TenantId) -> TenantId:
        """Returns the fairness account that a tenant's requests are charged to."""
        account = self._accounts.get(tenant)
        if account is None:
            steps = tenant.split("/")[: self.policy.fairness_depth]
            account = self._accounts[tenant] = TenantId("/".join(steps))
        return account

    def mirror_class(self, ticket: Ticket) -> ServiceClass | None:
        """Returns the class of a copy. It has the limits of the class of the request that was copied."""
        return self.mirror_classes.get(ClassName(ticket.requested_class or ""))

    def weight(self, account: TenantId) -> int:
        tenant = self.tenants.get(account)
        return DEFAULT_WEIGHT if tenant is None else tenant.weight

    def without_unknown_names(self, ticket: Ticket) -> Ticket:
        """Returns the ticket, with any requested class, service tier or model tier that no longer exists removed."""
        if ticket.requested_class is not None and ticket.requested_class not in self.classes:
            ticket = replace(ticket, requested_class=None)
        service_tier = ticket.service_tier
        known = service_tier is None or service_tier in AUTO_SERVICE_TIERS or service_tier in self.service_tiers
        if not known:
            ticket = replace(ticket, service_tier=None)
        model = self.models.get(ticket.model)
        if ticket.model_tier is not None and model is not None and ticket.model_tier not in tier_names(model):
            ticket = replace(ticket, model_tier=None)
        return ticket


def _mirror_classes(policy: Policy) -> dict[ClassName, ServiceClass]:
    band = max((each.band for each in policy.classes), default=0) + 1
    return {
        each.name: ServiceClass(
            MIRROR_CLASS,
            band,
            first_token_ns_max=each.first_token_ns_max,
            idle_ns_max=each.idle_ns_max,
            total_ns_max=each.total_ns_max,
            accepts_unclassified=False,
            caps=each.caps,
        )
        for each in policy.classes
    }


def _min_shares(policy: Policy) -> dict[int, int]:
    """Returns the minimum share of each priority band that has one."""
    floors: dict[int, int] = {}
    for each in policy.classes:
        if each.min_share_percent:
            floors[each.band] = max(floors.get(each.band, 0), each.min_share_percent)
    return floors


def _long_prompts(policy: Policy) -> dict[PoolName, int]:
    """Returns the minimum length of a long prompt for each pool in which an e2e target lowers it.

    A prompt whose computation takes a large part of the target would make requests behind it miss the target. Requests
    without an e2e target that have such a prompt therefore use only the long lane. A prompt that fits into one step is
    never long. An assumed speed sets no limit.
    """
    found: dict[PoolName, int] = {}
    for service_class in policy.classes:
        if service_class.e2e_ns is None:
            continue
        for pool in policy.pools:
            if pool.speed_assumed or (service_class.pools and pool.name not in service_class.pools):
                continue
            prefill_ps = _LONG_PERCENT * service_class.e2e_ns * _PS_PER_NS // 100
            tokens = max(pool.speed.chunk_tokens, prefill_ps // max(1, pool.speed.prefill_token_ps))
            if tokens < found.get(pool.name, policy.headroom.long_prompt_tokens):
                found[pool.name] = tokens
    return found
