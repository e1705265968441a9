"""Policy: the rules that the scheduler follows.

A policy is one immutable value. It is delivered by the event `PolicyChanged`, which is logged and replayed like any
other event. It defines classes, tenants, models and pools. Endpoints join and leave through separate events.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from headgate.model.caps import Caps
from headgate.model.money import Budget, NanoUsd, Price
from headgate.model.overrides import OperatorOverride
from headgate.model.routes import ModelRoute, Sticky
from headgate.model.speed import EngineSpeed
from headgate.model.tenant import DataResidency, Plan, Tenant
from headgate.model.ticket import Api
from headgate.model.units import MILLISECOND, MINUTE, SECOND, ClassName, Duration, ModelName, PoolName, TenantId

AUTO_SERVICE_TIERS: Final = ("auto", "default")
"""Values of `service_tier` that let the gateway choose the class, as if no value were given."""
_DEFAULT_CAPS = Caps()
_NO_CAPS = Caps(n=None, best_of=None, logprobs=None, prompt_logprobs=None, prompts=None, inputs=None)
_DEFAULT_SPEED = EngineSpeed()


class OptimizationGoal(StrEnum):
    """Property that a class preserves under overload."""

    LATENCY = "latency"
    """Responses stay fast, but may be shorter or come from a smaller model."""
    QUALITY = "quality"
    """Responses do not change, but requests may wait longer."""
    COST = "cost"
    """The class is degraded first."""


@dataclass(frozen=True, slots=True)
class DegradationStep:
    """Caps and model of a class at a degradation level and above. Omitted settings stay unchanged."""

    level: int
    caps: Caps = _NO_CAPS
    """Caps to combine with those of the class. The stricter value of each cap applies."""
    model: ModelName | None = None
    """Model whose pools serve the requests instead. None leaves the model unchanged."""


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """How one kind of request is treated."""

    name: ClassName
    band: int
    """Priority band of the class. The lowest number is served first."""
    queue_wait_ns_max: Duration = Duration(30 * SECOND)
    queue_length_max: int = 2_000
    queue_length_per_tenant_max: int = 500
    first_token_ns_max: Duration = Duration(60 * SECOND)
    """Maximum time to the first token of a streaming attempt."""
    idle_ns_max: Duration = Duration(30 * SECOND)
    """Maximum time between two tokens of a streaming attempt."""
    total_ns_max: Duration = Duration(10 * MINUTE)
    """Maximum duration of one attempt, streaming or not."""
    service_tiers: tuple[str, ...] = ()
    """Values of `service_tier` that select this class."""
    prompt_tokens_max: int | None = None
    """Maximum prompt length, in tokens, that the class accepts from callers that specify neither a class nor a tier."""
    accepts_unclassified: bool = True
    """Whether the class accepts requests that specify neither a class nor a tier."""
    pools: tuple[PoolName, ...] = ()
    """Pools that the class may use. Empty means all pools of the model."""
    caps: Caps = _DEFAULT_CAPS
    """Upper limits for request parameters."""
    ttft_ns: Duration | None = None
    """Time-to-first-token target for streaming responses.

    Requests that can no longer meet it are not sent to an engine.
    """
    tpot_ns: Duration | None = None
    """Target for the mean time per output token after the first (TPOT)."""
    min_share_percent: int = 0
    """Minimum share of a pool's engine time that the class's priority band gets while higher bands have work, in
    percent.

    If the classes of a band differ, the highest value applies.
    """
    reserve_percent: int = 0
    """Share of each endpoint's slots that is reserved for the class, in percent."""
    optimize_for: OptimizationGoal = OptimizationGoal.LATENCY
    degradation_steps: tuple[DegradationStep, ...] = ()
    """Degradation steps, in ascending order of level."""
    hedging: bool = False
    """Whether the scheduler may send a second attempt elsewhere if the first is silent for an unusually long time."""
    cold_start_wait_ns_max: Duration | None = None
    """Maximum time that a request is held while the first endpoint of a pool without endpoints starts.

    If None, the request is rejected immediately.
    """
    budgets: tuple[Budget, ...] = ()
    """Budgets shared by all requests of the class."""
    cost_per_request_max: NanoUsd | None = None
    """Maximum cost of one request. Only for classes that optimize for cost."""
    cost_per_unit_max: NanoUsd | None = None
    """Maximum cost of all requests of one business unit per day. Only for classes that optimize for cost."""
    ttft_assumed: bool = False
    tpot_assumed: bool = False
    """Whether the target is a default instead of a configured value.

    A default does not apply while engine speeds are being learned, or if the engines cannot meet it even for a single
    request.
    """
    e2e_ns: Duration | None = None
    """Target for the time from the arrival of a request to the end of its response.

    Requests that can no longer meet it are not sent to an engine.
    """
    data_residency: DataResidency = DataResidency.ANY

    @property
    def latency_target_ns(self) -> Duration | None:
        """Stricter of the TTFT and e2e targets. None if the class has neither."""
        if self.ttft_ns is None or self.e2e_ns is None:
            return self.e2e_ns if self.ttft_ns is None else self.ttft_ns
        return min(self.ttft_ns, self.e2e_ns)


@dataclass(frozen=True, slots=True)
class Pool:
    """Endpoints that serve the same model in the same way."""

    name: PoolName
    warm_up_ns: Duration = Duration(30 * SECOND)
    """Typical time from the start of an endpoint to its first response."""
    speed: EngineSpeed = _DEFAULT_SPEED
    kv_tokens: int | None = None
    """KV cache capacity of one endpoint, in tokens. None if not configured."""
    prompt_tokens_min: int = 0
    prompt_tokens_max: int | None = None
    """Range of prompt lengths, in tokens, that the pool is intended for.

    It applies only if another pool of the model is intended for the other lengths.
    """
    output_tokens_min: int = 0
    output_tokens_max: int | None = None
    """Range of predicted response lengths, in tokens, that the pool is intended for."""
    hold_max: int = 0
    """Maximum number of requests held for the first endpoint. 0 if the pool always has at least one endpoint."""
    cold_start_ns: Duration = Duration(120 * SECOND)
    """Cold start duration of the first endpoint. Used until a cold start has been measured."""
    prices: tuple[Price, ...] = ()
    """Prices, in ascending order of start time. Empty if the pool is free."""
    speed_assumed: bool = False
    """Whether the speed is assumed instead of configured. An assumed speed does not cause rejections."""
    scales: bool = False
    """Whether the number of endpoints depends on the load (`scaling`)."""
    max_lora: int | None = None
    """Maximum number of distinct LoRA adapters with requests in flight on one engine. None if not configured."""
    discovers_adapters: bool = False
    """Whether each adapter that an endpoint reports is a model, even if it is not in the policy."""
    in_flight_replacement: tuple[int, int] | None = None
    """Configured `in_flight_max` and the value that replaces it. None if an operator has not set one."""
    hosted: bool = False
    """Whether the endpoints belong to a hosted provider, which receives only requests that may leave the operator."""


@dataclass(frozen=True, slots=True)
class BatchRules:
    """Rules for combining requests to one endpoint into one call.

    The scheduler still makes a separate decision for each request.
    """

    batch_size_max: int = 32
    """Maximum number of inputs in one call. A longer list is split into several calls."""
    preferred_batch_sizes: tuple[int, ...] = ()
    """Batch sizes at which a batch is sent as soon as exactly that many inputs are waiting."""
    delay_ns_max: Duration = Duration(5 * MILLISECOND)
    """Maximum batch wait while the engine is busy. If the engine is idle, requests are sent immediately."""
    delay_ttft_percent_max: int = 10
    """Maximum batch wait, in percent of the class's TTFT target and of the time left until the deadline."""
    tokens_max: int = 8_192
    """Maximum total size of the inputs in one call, in tokens estimated from bytes. A longer input is sent alone."""
    calls_per_request_max: int = 2
    """Maximum number of concurrent calls for one list that is longer than `batch_size_max`."""
    calls_max: int | None = None
    """Maximum number of concurrent calls to an endpoint. None means no limit.

    Once the limit is reached, further requests wait and are sent as a batch when a call completes.
    """


@dataclass(frozen=True, slots=True)
class ModelTierRule:
    """Rule that assigns requests to pools of a model. An omitted criterion matches every request."""

    pools: tuple[PoolName, ...]
    classes: tuple[ClassName, ...] = ()
    plans: tuple[Plan, ...] = ()
    prompt_tokens_max: int | None = None
    name: str | None = None
    """Value of the header `x-headgate-model-tier` that the rule matches."""


@dataclass(frozen=True, slots=True)
class ClassRule:
    """Rule that chooses the class for requests that do not specify one. An omitted criterion matches every request."""

    service_class: ClassName
    plans: tuple[Plan, ...] = ()
    tenants: tuple[TenantId, ...] = ()
    """Tenants that the rule matches, including all tenants below them."""
    stream: bool | None = None
    """True matches only streaming requests, False only non-streaming ones."""
    apis: tuple[Api, ...] = ()
    metadata: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Keys of the request metadata, each with its accepted values."""
    prompt_tokens_max: int | None = None
    """Maximum prompt length that the rule matches, in tokens."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """Pools that serve requests for which the model's own pools would take too long."""

    pools: tuple[PoolName, ...]
    after_ns: Duration
    """Queue wait above which a request may go to these pools."""
    classes: tuple[ClassName, ...] = ()
    """Classes that may overflow. Empty means all classes."""


@dataclass(frozen=True, slots=True)
class Model:
    """Public model name and the pools that serve it, from the smallest tier to the largest."""

    name: ModelName
    pools: tuple[PoolName, ...]
    tiers: tuple[ModelTierRule, ...] = ()
    """Tier rules. The first rule that matches chooses the pools. If none matches, all pools may serve."""
    fallbacks: tuple[ModelName, ...] = ()
    """Models whose pools are tried, in this order, if no endpoint of this model's own pools is ready."""
    adapter: str = ""
    """LoRA adapter that serves the model, by its name in the engines. Empty if the pools serve the model itself."""
    routes: tuple[ModelRoute, ...] = ()
    """Routes. The first group of routes that matches chooses the pools. If none matches, all pools may serve."""
    sticky: Sticky = Sticky.REQUEST
    """Property that keeps requests on the same route."""
    overflow: Overflow | None = None
    """Pools for requests that would wait too long. None if requests wait."""

    @property
    def all_pools(self) -> tuple[PoolName, ...]:
        """The model's own pools, those of its routes and those of its overflow.

        Mirrors do not serve tenants, so theirs are not included.
        """
        others = () if self.overflow is None else self.overflow.pools
        return tuple(dict.fromkeys((*self.pools, *(pool for route in self.routes for pool in route.pools), *others)))


@dataclass(frozen=True, slots=True)
class RetryRules:
    """Limits on extra attempts. Credit is counted in hundredths of a retry."""

    attempts_max: int = 3
    credit_per_first_attempt: int = 10
    credit_burst: int = 1_000
    cost: int = 100
    timeout_cost: int = 200
    pool_budget_window_ns: Duration = Duration(10 * SECOND)
    pool_budget_percent: int = 20
    """Maximum number of extra attempts in a pool, in percent of its first attempts within the window."""
    pool_retries_min: int = 10
    """Number of extra attempts allowed within the window regardless of the number of first attempts."""


@dataclass(frozen=True, slots=True)
class HealthRules:
    """Rules for ejecting and readmitting endpoints."""

    consecutive_failures_max: int = 3
    """Number of consecutive failures after which an endpoint is ejected."""
    stall_ns_max: Duration = Duration(30 * SECOND)
    """Time without any activity after which an endpoint with open streams is ejected."""
    ejection_ns: Duration = Duration(10 * SECOND)
    ejection_ns_max: Duration = Duration(5 * MINUTE)
    """Maximum duration of an ejection. Each consecutive ejection lasts twice as long as the previous one."""
    slow_start_ns: Duration = Duration(10 * SECOND)
    """Ramp-up time of an endpoint that becomes ready while other endpoints are serving."""
    zone_ejection_percent: int = 60
    """Share of a zone's endpoints, in percent, whose ejection causes the others in the zone to be ejected.

    At least two endpoints must be ejected.
    """


@dataclass(frozen=True, slots=True)
class HeadroomRules:
    """Conditions under which an endpoint accepts another request.

    Time limits are percentages of the strictest time-per-token target in the pool.
    """

    pending_prefill_percent: int = 60
    """Limit on prompt tokens that the endpoint has yet to process, in percent of the tokens of one step."""
    measured_tpot_percent: int = 95
    """Limit on the measured inter-token latency, in percent of the target."""
    predicted_tpot_percent: int = 80
    """Limit on the predicted duration of a decode step that includes the new request, in percent of the target."""
    kv_percent: int = 95
    """Limit on the reserved KV cache, including the expected growth of responses, in percent of its capacity."""
    long_prompt_tokens: int = 8_192
    """Minimum length, in tokens, of a prompt that counts as long.

    A long prompt occupies an endpoint until it is computed.
    """
    long_lane_percent: int = 50
    """Share of a pool's endpoints, in percent, that may compute long prompts concurrently. At least one always may."""


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """Rules for rejecting requests on arrival because they would miss their deadline."""

    predicted_wait_percent_max: int | None = 100
    """Maximum predicted wait, in percent of the time that the request may wait. None admits all requests."""


SESSION_FIELDS: Final = ("prompt_cache_key",)


@dataclass(frozen=True, slots=True)
class RoutingRules:
    """Rules for choosing an endpoint."""

    prefix_affinity: bool = True
    """Whether the scheduler prefers endpoints that have probably cached the prefix of the prompt."""
    cross_zone_penalty_ns: Duration = Duration(5 * MILLISECOND)
    """Penalty for an endpoint outside the gateway's zone, added to its predicted time."""
    adapter_load_penalty_ns: Duration = Duration(200 * MILLISECOND)
    """Penalty for an endpoint that has to load the request's LoRA adapter first, added to its predicted time."""
    session_preference_ns: Duration = Duration(0)
    """Cost of an endpoint other than the one that served the session last, for a prompt that it has seen in full.

    0 if sessions are not used.
    """
    session_fields: tuple[str, ...] = SESSION_FIELDS
    """Body fields that may name a session, in order of precedence. The header `x-session-id` precedes them."""
    metrics_stale_ns: Duration = Duration(30 * SECOND)
    """Time without engine metrics after which the metrics of an endpoint are stale.

    An endpoint with stale metrics gets no requests while most of the pool still reports metrics.
    """


@dataclass(frozen=True, slots=True)
class SheddingRules:
    """Rules for load shedding on arrival. Pressure is in thousandths; at 1,000 a target is being missed."""

    enabled: bool = False
    period_ns: Duration = Duration(100 * MILLISECOND)
    """Interval at which the shedder and the degradation measure pressure while requests are queued."""
    target_pressure: int = 1_500
    """Target pressure. The shedder rejects more requests above it and fewer below it."""
    proportional_gain: int = 100
    integral_gain: int = 10
    """Gains of the controller, in millionths of arrivals per thousandth of pressure.

    The proportional gain applies to changes in pressure, the integral gain to the distance from the target in each
    period.
    """
    shed_percent_max: int = 95
    """Maximum share of arrivals that the shedder rejects, in percent."""
    arrival_window: int = 1_000
    """Number of recent arrivals that the shedder ranks to find the least important ones."""


@dataclass(frozen=True, slots=True)
class DegradationRules:
    """Rules for raising and lowering the degradation level. Pressure is in thousandths."""

    enabled: bool = True
    escalate_above: int = 1_000
    escalate_after_ns: Duration = Duration(3 * SECOND)
    """How long pressure must stay above `escalate_above` before the level rises by one.

    It rises again after each further interval.
    """
    recover_below: int = 700
    recover_after_ns: Duration = Duration(30 * SECOND)
    level_max: int = 6
    """Maximum degradation level."""
    downgrade_prompt_tokens_max: int = 1_000
    """Maximum length, in tokens, of prompts that degradation moves to their model's next smaller tier."""


@dataclass(frozen=True, slots=True)
class Policy:
    classes: tuple[ServiceClass, ...] = ()
    tenants: Collection[Tenant] = ()
    """Tenants. Many tenants should be a `TenantTable`, which makes changes of few of them cheap."""
    pools: tuple[Pool, ...] = ()
    models: tuple[Model, ...] = ()
    retry: RetryRules = RetryRules()
    health: HealthRules = HealthRules()
    headroom: HeadroomRules = HeadroomRules()
    admission: AdmissionRules = AdmissionRules()
    routing: RoutingRules = RoutingRules()
    shedding: SheddingRules = SheddingRules()
    degradation: DegradationRules = DegradationRules()
    fairness_depth: int = 1
    """Number of components of a tenant's path that identify an account for fair sharing."""
    overrides: tuple[OperatorOverride, ...] = ()
    """Operator overrides, oldest first."""
    tenants_loaded: bool = True
    """Whether `tenants` is complete. Until all tenants have been read, an unknown tenant may exist."""
    unit_key: str | None = None
    """Metadata key that names the business unit of a request."""
    class_rules: tuple[ClassRule, ...] = ()
    """Rules for classifying requests that specify neither a class nor a tier. The first matching rule decides.

    If no rule matches, the prompt length decides.
    """

    def differs_only_in_tenants(self, other: "Policy") -> bool:
        return replace(self, tenants=()) == replace(other, tenants=())
