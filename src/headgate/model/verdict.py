"""Verdicts: the diagnosis of a pool, or of the whole gateway if `pool` is None.

`Cause` locates the problem. `Incident` is the recognised pattern and identifies its runbook.
"""

from enum import StrEnum

from headgate.model.message import message
from headgate.model.units import ClassName, Duration, Instant, PoolName, TenantId


class Cause(StrEnum):
    HEALTHY = "healthy"
    COMPUTE = "compute"
    """The engines have more work than they can compute."""
    MEMORY = "memory"
    """The engines' KV caches are full, or their cached prefixes were lost."""
    SCHEDULER = "scheduler"
    """The gateway is too slow: its process, event loop or CPU."""
    UPSTREAM = "upstream"
    """A dependency is failing or slow: an engine, the network to it, the cell's store or the database."""
    CLIENT = "client"
    """Client behaviour: one client is flooding the gateway, many are retrying, or requests have become larger."""
    CONFIGURATION = "configuration"
    """A setting is wrong: too few slots while engines are idle, or endpoints that do not exist."""


class Incident(StrEnum):
    """Recognised incident patterns. Each has a runbook with its name in docs/operations/runbooks."""

    HEALTHY = "healthy"
    LONG_PROMPTS = "long_prompts"
    PROMPT_DRIFT = "prompt_drift"
    OVERLOAD = "overload"
    """More work than the engines can compute, without a more specific pattern."""
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
    """No request is served because there is no endpoint to send it to."""
    ENGINE_FAILING = "engine_failing"
    """Engines respond, but with errors."""
    ENGINE_DOWN = "engine_down"
    """No process is listening at an endpoint's address, the endpoint is unreachable, or it is restarting in a loop."""
    ENGINE_MISCONFIGURED = "engine_misconfigured"
    """An engine rejects the gateway's key or does not serve its configured model."""
    GATEWAY_RESOURCES = "gateway_resources"
    """The gateway lacks file descriptors, memory, ports, disk space or name resolution."""
    CLIENT_TIMEOUTS = "client_timeouts"
    """Clients are disconnecting before they get a response."""


@message
class Affected:
    """Class or tenant that an incident affects."""

    service_class: ClassName | None
    tenant: TenantId | None
    effect: str
    """Effect on the requests, such as `p99 to first token 4.2 s, usually 0.3 s`."""


@message
class Verdict:
    pool: PoolName | None
    cause: Cause
    incident: Incident
    since: Instant
    summary: str
    """One-sentence summary of the problem and the reason for the diagnosis."""
    evidence: tuple[str, ...] = ()
    """Measured facts, each with its usual value, strongest first."""
    affected: tuple[Affected, ...] = ()
    action: str = ""
    """First step to take."""


@message
class Shortage:
    """Resource shortage in a process."""

    description: str
    """Description, such as `fewer than 8 of 1,024 file descriptors are free`."""
    remedy: str
    """Remedy, as a full sentence."""
    partial: bool = False
    """Whether only some endpoints are affected. If so, pool findings are reported as well."""


@message
class HostReport:
    """State of a process, reported about once a second."""

    process: str
    """Process name. In a cell, the member's name."""
    loop_lag_ns: Duration
    """Maximum event-loop lag since the last report."""
    cpu_percent: int
    """CPU use since the last report, in percent of one CPU."""
    decide_percent: int = 0
    """Share of the time since the last report spent in the scheduler, in percent."""
    connect_ns: tuple[tuple[PoolName, Duration], ...] = ()
    """Median recent connect time per pool. Pools without recent connections are omitted."""
    store_ns: Duration | None = None
    """Slowest round trip to the cell's store in the last two seconds. None if there is no cell."""
    store_up: bool = True
    database_up: bool | None = None
    shortages: tuple[Shortage, ...] = ()
    cpu_wait_percent: int = 0
    """Share of the time since the last report in which the event loop was ready to run but had no CPU, in percent."""
