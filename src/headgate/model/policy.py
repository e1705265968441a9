"""What rules does the scheduler follow?

Policy is data: one frozen value, brought by the event `PolicyChanged`, logged and replayed
like any other. It names classes, tenants, models and pools; endpoints come and go by events
of their own.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headgate.model.caps import Caps
from headgate.model.money import Budget, NanoUsd, Price
from headgate.model.orders import OperatorOrder
from headgate.model.speed import EngineSpeed
from headgate.model.tenant import Plan, Tenant
from headgate.model.ticket import Api
from headgate.model.units import MILLISECOND, MINUTE, SECOND, ClassName, Duration, ModelName, PoolName, TenantId

NO_TIER_CHOICE: Final = ("auto", "default")
"""Values of `service_tier` that leave the choice of the class to the gateway, like a missing value."""
_USUAL_CAPS = Caps()
_NO_CAPS = Caps(n=None, best_of=None, logprobs=None, prompt_logprobs=None, prompts=None, inputs=None)
_USUAL_SPEED = EngineSpeed()


class Promise(StrEnum):
    """What a class keeps when something has to give way."""

    LATENCY = "latency"
    """Stays quick: may lose length, or be sent to a smaller model."""
    QUALITY = "quality"
    """Stays good: may only wait."""
    COST = "cost"
    """Stays cheap: gives way first."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What a class gives up from a level of the ladder on. What it does not name stays as it is."""

    level: int
    caps: Caps = _NO_CAPS
    """Joined with the class's own: the stricter of the two counts."""
    model: ModelName | None = None
    """Served by the pools of this model instead."""


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """How a kind of request is treated."""

    name: ClassName
    band: int
    """Classes of one band share a priority; the lowest number goes first."""
    queue_wait_ns_max: Duration = Duration(30 * SECOND)
    queue_length_max: int = 2_000
    queue_length_per_tenant_max: int = 500
    first_token_ns_max: Duration = Duration(60 * SECOND)
    """How long a streamed attempt may stay silent before its first token."""
    idle_ns_max: Duration = Duration(30 * SECOND)
    """How long a streamed attempt may stay silent between tokens."""
    total_ns_max: Duration = Duration(10 * MINUTE)
    """How long one attempt may last, streamed or not."""
    service_tiers: tuple[str, ...] = ()
    """Values of `service_tier` that select this class."""
    prompt_tokens_max: int | None = None
    """The longest prompt it takes when the caller named neither class nor tier."""
    unnamed: bool = True
    """Whether it takes requests of callers who named neither class nor tier."""
    pools: tuple[PoolName, ...] = ()
    """The pools it may use; empty means every pool of the model."""
    caps: Caps = _USUAL_CAPS
    """What its requests may ask of an engine, at most."""
    ttft_ns: Duration | None = None
    """By when a streamed answer should begin. What can no longer do so is not computed."""
    tpot_ns: Duration | None = None
    """How long each further token should take, on the mean."""
    floor_percent: int = 0
    """What its band is given of a pool's work, however much waits before it; of its classes the highest counts."""
    reserve_percent: int = 0
    """What is kept free for it of each endpoint's places."""
    promise: Promise = Promise.LATENCY
    variants: tuple[Variant, ...] = ()
    """In the order of their levels."""
    hedges: bool = False
    """Whether a second attempt may be made elsewhere while the first is silent for unusually long."""
    start_wait_ns: Duration | None = None
    """How long a request may be held for the first endpoint of a pool that has none; None refuses it at once."""
    budgets: tuple[Budget, ...] = ()
    """For all of its requests together."""
    cost_max: NanoUsd | None = None
    """What one request may cost; for the promise of cost."""
    unit_cost_max: NanoUsd | None = None
    """What all requests of one unit of business may cost together within a day; for the promise of cost."""
    ttft_assumed: bool = False
    tpot_assumed: bool = False
    """Whether the target is a default instead of a configured value. A default does not bind where the engines, by what
    was learned of their speed, cannot keep it for a single request."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Endpoints that serve the same model in the same way."""

    name: PoolName
    warm_up_ns: Duration = Duration(30 * SECOND)
    """How long an endpoint usually needs from its start to its first answer."""
    speed: EngineSpeed = _USUAL_SPEED
    kv_tokens: int | None = None
    """What the KV cache of an endpoint holds; None where nobody said."""
    prompt_tokens_min: int = 0
    prompt_tokens_max: int | None = None
    """The prompts it is meant for, as long as another pool of the model is meant for the rest."""
    output_tokens_min: int = 0
    output_tokens_max: int | None = None
    """The answers it is meant for, by their predicted length."""
    hold_max: int = 0
    """So many requests may be held for its first endpoint while it has none; 0 where it is meant to have one always."""
    cold_start_ns: Duration = Duration(120 * SECOND)
    """From when its first endpoint is asked for to when it serves, as long as that was not measured."""
    prices: tuple[Price, ...] = ()
    """In the order of their beginnings; empty where it costs nothing that anybody counts."""
    speed_assumed: bool = False
    """Whether the speed is a guess instead of a configured value. Nothing is rejected by a guess."""


@dataclass(frozen=True, slots=True)
class BatchRules:
    """When requests that were sent to one endpoint are asked together. The scheduler decides about each as ever."""

    inputs_max: int = 32
    """What one call asks for at most; a longer list is asked in several."""
    preferred: tuple[int, ...] = ()
    """When exactly so many wait they go at once."""
    delay_ns_max: Duration = Duration(5 * MILLISECOND)
    """How long a request waits for company while the engine is busy; while it is idle nobody waits."""
    budget_percent: int = 10
    """Of its class's time to the first token, and of what is left of its caller's deadline, it waits no more."""
    tokens_max: int = 8_192
    """What the inputs of one call come to at most, by their bytes; one that is longer goes alone."""
    parallel: int = 2
    """In so many calls at a time a list longer than `inputs_max` is asked."""
    calls_max: int | None = None
    """So many calls are made at a time; while they run all others wait, and go together. None sets no bound."""


@dataclass(frozen=True, slots=True)
class RungRule:
    """Who is served by which rung of a model. What a rule does not name it does not ask for."""

    pools: tuple[PoolName, ...]
    classes: tuple[ClassName, ...] = ()
    plans: tuple[Plan, ...] = ()
    prompt_tokens_max: int | None = None
    named: str | None = None
    """What the caller says in `x-headgate-rung`."""


@dataclass(frozen=True, slots=True)
class ClassRule:
    """The class of requests that name none. An omitted criterion matches every request."""

    service_class: ClassName
    plans: tuple[Plan, ...] = ()
    tenants: tuple[TenantId, ...] = ()
    """These tenants, and all tenants below them."""
    stream: bool | None = None
    """True matches streamed requests only; False matches the others only."""
    apis: tuple[Api, ...] = ()
    metadata: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Keys of the request's metadata, each with its accepted values."""
    prompt_tokens_max: int | None = None
    """The longest prompt that the rule matches."""


@dataclass(frozen=True, slots=True)
class Model:
    """A public model name and the pools that serve it, from the smallest rung to the largest."""

    name: ModelName
    pools: tuple[PoolName, ...]
    rungs: tuple[RungRule, ...] = ()
    """The first that fits chooses the pools; where none does all of them may serve."""
    fallbacks: tuple[ModelName, ...] = ()
    """Whose pools are tried, in this order, when no endpoint of its own can serve."""


@dataclass(frozen=True, slots=True)
class RetryRules:
    """How many extra attempts may be made. Credit is counted in hundredths of a retry."""

    attempts_max: int = 3
    credit_per_first_attempt: int = 10
    credit_burst: int = 1_000
    cost: int = 100
    cost_after_silence: int = 200
    pool_window_ns: Duration = Duration(10 * SECOND)
    pool_percent: int = 20
    """Extra attempts of a pool, in percent of its first attempts within the window."""
    pool_extra_min: int = 10
    """However few first attempts there are, so many extra ones are allowed within the window."""


@dataclass(frozen=True, slots=True)
class HealthRules:
    """When an endpoint is ejected and when it may return."""

    failures_max: int = 3
    """This many failures in a row eject it."""
    stall_ns_max: Duration = Duration(30 * SECOND)
    """Streams that have begun, and not a sign of life from any attempt for this long, eject it."""
    eject_ns: Duration = Duration(10 * SECOND)
    eject_ns_max: Duration = Duration(5 * MINUTE)
    """Each ejection in a row lasts twice as long as the one before, up to this."""
    slow_start_ns: Duration = Duration(10 * SECOND)
    """So long it takes until an endpoint that joins others takes as much as they do."""
    zone_percent: int = 60
    """With so many of a zone's endpoints ejected, and at least two, the others there are too."""


@dataclass(frozen=True, slots=True)
class HeadroomRules:
    """When an endpoint takes one more request. Percentages are of the strictest time per token promised at its pool."""

    pending_percent: int = 60
    """Prompts that have yet to be computed there, in percent of what one step computes."""
    measured_percent: int = 95
    """Between two tokens, as measured."""
    predicted_percent: int = 80
    """A step in which nobody's prompt is computed, as predicted with the newcomer in it."""
    kv_percent: int = 95
    """Of the KV cache, with what answers may grow to."""
    long_tokens: int = 8_192
    """A prompt from this length on is long: it keeps an endpoint from all others until it is computed."""
    long_percent: int = 50
    """At so many of a pool's endpoints, and at least at one, such prompts may be computed at the same time."""


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """When a request is refused at its arrival because it would come too late."""

    certainty_percent: int | None = 100
    """Of the time that it may wait: a predicted wait beyond this refuses. None lets everybody wait and see."""


@dataclass(frozen=True, slots=True)
class RoutingRules:
    """What counts, in seconds, when an endpoint is chosen."""

    prefix: bool = True
    """Whether it counts what an engine has probably computed of a prompt's beginning."""
    other_zone_ns: Duration = Duration(5 * MILLISECOND)
    """What an endpoint in another zone than the gateway's is behind one in the same."""
    stale_ns: Duration = Duration(30 * SECOND)
    """An engine that told of itself and has been silent for so long is not trusted, as long as most others talk."""


@dataclass(frozen=True, slots=True)
class SheddingRules:
    """How much is refused at arrival under overload. Pressure is in thousandths: at 1,000 a target is being missed."""

    enabled: bool = False
    period_ns: Duration = Duration(100 * MILLISECOND)
    """How often pressure is measured, by the shedder and by the ladder, as long as anything waits."""
    pressure: int = 1_500
    """What the fraction refused is steered towards: above it grows, below it shrinks."""
    proportional_gain: int = 100
    integral_gain: int = 10
    """Millionths of arrivals per thousandth of pressure: by how much it changed, and every period by how far it is off.
    """
    percent_max: int = 95
    """Of arrivals, never more than these are refused."""
    arrivals: int = 1_000
    """So many of the last are remembered, to know which rank divides them."""


@dataclass(frozen=True, slots=True)
class LadderRules:
    """When more is given up, and when it is given back. Pressure is in thousandths."""

    enabled: bool = True
    climb_above: int = 1_000
    climb_after_ns: Duration = Duration(3 * SECOND)
    """A step up when pressure was above for so long, and another for each time as long."""
    descend_below: int = 700
    descend_after_ns: Duration = Duration(30 * SECOND)
    level_max: int = 6
    """No more than this level allows is ever given up."""
    easy_tokens: int = 1_000
    """A prompt up to this length is easy enough for the next smaller rung of its model."""


@dataclass(frozen=True, slots=True)
class Policy:
    classes: tuple[ServiceClass, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    pools: tuple[Pool, ...] = ()
    models: tuple[Model, ...] = ()
    retry: RetryRules = RetryRules()
    health: HealthRules = HealthRules()
    headroom: HeadroomRules = HeadroomRules()
    admission: AdmissionRules = AdmissionRules()
    routing: RoutingRules = RoutingRules()
    shedding: SheddingRules = SheddingRules()
    ladder: LadderRules = LadderRules()
    fairness_depth: int = 1
    """Of a tenant's path, how many steps name the one whom turns are counted for."""
    orders: tuple[OperatorOrder, ...] = ()
    """What operators have ordered, in the order of their orders."""
    tenants_whole: bool = True
    """Whether all tenants are here. While they have yet to be read, one that is not may exist all the same."""
    unit: str | None = None
    """Which key of a request's metadata names its unit of business."""
    class_rules: tuple[ClassRule, ...] = ()
    """The classes of requests that name neither class nor tier: the first rule that matches decides. If none matches,
    the size of the prompt decides."""
