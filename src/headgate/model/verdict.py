"""What is wrong, with whom, and what is to be done first?

A verdict is about one pool, or about the whole gateway where `pool` is None. `Cause` is the answer to the question of
whoever is woken at night; `Incident` is the pattern by which it was recognised, and names the page that says what
to do.
"""

from enum import StrEnum

from headgate.model.message import message
from headgate.model.units import ClassName, Duration, Instant, PoolName, TenantId


class Cause(StrEnum):
    HEALTHY = "healthy"
    COMPUTE = "compute"
    """The engines have more to compute than they can."""
    MEMORY = "memory"
    """Their KV caches are what is short, or what they remembered is lost."""
    SCHEDULER = "scheduler"
    """We ourselves fall behind: this process, its event loop, its processor."""
    UPSTREAM = "upstream"
    """Something that we depend on: an engine, the network to it, the store of the cell, the database."""
    CLIENT = "client"
    """What callers do: one of them floods, all of them retry, or they ask for more than they did."""
    CONFIGURATION = "configuration"
    """What somebody set: places too few while engines idle, endpoints that are not there."""


class Incident(StrEnum):
    """The patterns that are told apart. Each has a page of its own name in docs/operations/runbooks."""

    HEALTHY = "healthy"
    LONG_PROMPTS = "long_prompts"
    PROMPT_DRIFT = "prompt_drift"
    OVERLOAD = "overload"
    """More than can be computed, of no particular shape."""
    KV_EXHAUSTED = "kv_exhausted"
    NOISY_TENANT = "noisy_tenant"
    ENGINE_HANG = "engine_hang"
    SLOW_NETWORK = "slow_network"
    COLD_START = "cold_start"
    RETRY_STORM = "retry_storm"
    PREFIX_CACHE_LOST = "prefix_cache_lost"
    SLOW_ENDPOINT = "slow_endpoint"
    COST_DRIFT = "cost_drift"
    LIMIT_TOO_LOW = "limit_too_low"
    SCHEDULER_BEHIND = "scheduler_behind"
    STORE_SLOW = "store_slow"
    NO_ENDPOINTS = "no_endpoints"
    """Nobody is served, for there is nowhere to send anything."""
    ENGINE_FAILING = "engine_failing"
    """Engines answer, but with errors."""
    ENGINE_DOWN = "engine_down"
    """Nothing listens at an endpoint's address, it cannot be reached, or it restarts in a loop."""
    ENGINE_MISCONFIGURED = "engine_misconfigured"
    """An engine rejects the gateway's key, or does not serve the model that it is configured for."""
    GATEWAY_RESOURCES = "gateway_resources"
    """The gateway itself lacks file descriptors, memory, ports, disk space or name resolution."""
    CLIENT_TIMEOUTS = "client_timeouts"
    """Callers give up before they can be answered."""


@message
class Affected:
    """Who suffers from it, and how."""

    service_class: ClassName | None
    tenant: TenantId | None
    how: str
    """Such as `p99 to first token 4.2 s, usually 0.3 s`."""


@message
class Verdict:
    pool: PoolName | None
    cause: Cause
    incident: Incident
    since: Instant
    sentence: str
    """One sentence for whoever is woken: what is wrong, and why we think so."""
    evidence: tuple[str, ...] = ()
    """Measured facts, each with what is usual, the strongest first."""
    affected: tuple[Affected, ...] = ()
    action: str = ""
    """What to do first."""


@message
class Shortage:
    """A resource that a process lacks."""

    what: str
    """Such as `fewer than 8 of 1,024 file descriptors are free`."""
    remedy: str
    """What to do about it, as a sentence."""
    partial: bool = False
    """Whether it affects only some endpoints. If so, findings about pools are reported as well."""


@message
class HostReport:
    """What a process tells of itself, about once a second."""

    process: str
    """Its name; in a cell that of the member."""
    loop_lag_ns: Duration
    """The most by which its event loop was late since the last report."""
    cpu_percent: int
    """Of one processor, since the last report."""
    decide_percent: int = 0
    """Of the time since the last report, what the scheduler itself took."""
    transport_ns: tuple[tuple[PoolName, Duration], ...] = ()
    """How long it took to connect to endpoints of each pool of late, the median; pools without news are not there."""
    store_ns: Duration | None = None
    """The slowest round trip to the store of the cell in the last two seconds; None without a cell."""
    store_up: bool = True
    database_up: bool | None = None
    shortages: tuple[Shortage, ...] = ()
    wait_percent: int = 0
    """Share of the time since the last report in which its event loop was ready to run and had no processor."""
