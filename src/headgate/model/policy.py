"""What rules does the scheduler follow?

Policy is data: one frozen value, brought by the event `PolicyChanged`, logged and replayed
like any other. It names classes, tenants, models and pools; endpoints come and go by events
of their own.
"""

from dataclasses import dataclass

from headgate.model.caps import Caps
from headgate.model.tenant import Tenant
from headgate.model.units import MINUTE, SECOND, ClassName, Duration, ModelName, PoolName

_USUAL_CAPS = Caps()


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


@dataclass(frozen=True, slots=True)
class Pool:
    """Endpoints that serve the same model in the same way."""

    name: PoolName
    warm_up_ns: Duration = Duration(30 * SECOND)
    """How long an endpoint usually needs from its start to its first answer."""


@dataclass(frozen=True, slots=True)
class Model:
    """A public model name and the pools that serve it."""

    name: ModelName
    pools: tuple[PoolName, ...]


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


@dataclass(frozen=True, slots=True)
class Policy:
    classes: tuple[ServiceClass, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    pools: tuple[Pool, ...] = ()
    models: tuple[Model, ...] = ()
    retry: RetryRules = RetryRules()
    health: HealthRules = HealthRules()
