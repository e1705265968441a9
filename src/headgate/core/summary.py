"""Read-only summary of the scheduler's state, created on demand.

It holds no references to the core's own objects.
"""

from dataclasses import dataclass, field

from headgate.model.endpoint import EndpointProblem, EndpointState
from headgate.model.units import ClassName, EndpointId, PoolName, TenantId


@dataclass(frozen=True, slots=True)
class EndpointSummary:
    id: EndpointId
    pool: PoolName
    state: EndpointState
    leaving: bool
    in_flight: int
    in_flight_max: int
    kv_tokens: int = 0
    """KV cache tokens in use, if reported."""
    suspected: bool = False
    """Whether the last request on the endpoint failed or the endpoint has stopped reporting metrics."""
    decode_percent: int = 100
    prefill_percent: int = 100
    """Decode and prefill time relative to the configured profile. Above 100, the endpoint is slower."""
    drained: bool = False
    """Whether an operator override is draining the endpoint."""
    unserved_members: tuple[str, ...] = ()
    """Cell members whose requests fail here while most other members are served. Their failures are not counted."""
    trouble: EndpointProblem | None = None
    """Why the endpoint fails its probes, was ejected or is on trial. None if none of these applies."""
    trouble_detail: str = ""
    """The observed error."""
    probe_fails: bool = False
    sequences_max: int | None = None
    """Maximum number of concurrent requests in the engine, as learned by `core/routing/sequence_limit.py`."""
    engine: str = ""
    """Engine that the endpoint shares with other pools. Its slots are counted in the rows of all its endpoints."""
    kv_full: bool = False
    """Whether the KV cache has no room for another average request, allowing for the growth of running requests."""
    adapters: tuple[tuple[str, int], ...] = ()
    """LoRA adapters with requests in flight, each with their number."""
    quota_exhausted: bool = False
    """Whether the hosted provider accepts no requests until a rate limit is reset."""
    served: int = field(default=0, compare=False)
    """Attempts completed on this endpoint since it joined."""


@dataclass(frozen=True, slots=True)
class PoolDegradation:
    """Degradation and load shedding in a pool: the highest values of all requests that may use it."""

    pool: PoolName
    level: int
    """Degradation level."""
    shed_ppm: int
    """Arriving requests rejected by load shedding, per million."""


@dataclass(frozen=True, slots=True)
class WaitingWork:
    """Queued engine time in one priority band, for the requests that share a set of pools."""

    pools: tuple[PoolName, ...]
    band: int
    work_ns: int


@dataclass(frozen=True, slots=True)
class Summary:
    policy_hash: str
    queued: dict[ClassName, int]
    """Queued requests by class, excluding requests on hold. Every class of the policy has an entry."""
    requests: int
    """Number of open requests."""
    endpoints: tuple[EndpointSummary, ...]
    degradation: tuple[PoolDegradation, ...] = ()
    """Pools that have received requests, including those without degradation."""
    prefix_hashes: tuple[tuple[PoolName, int], ...] = ()
    """Number of hashes in the prefix index of each pool that has one."""
    sessions: tuple[tuple[PoolName, int], ...] = ()
    """Number of sessions in the session index of each pool that has any."""
    prefix_bytes: tuple[tuple[PoolName, int], ...] = ()
    """Estimated memory of these indexes."""
    waiting_work: tuple[WaitingWork, ...] = ()
    held: dict[tuple[PoolName, ClassName], int] = field(default_factory=dict[tuple[PoolName, ClassName], int])
    """Requests on hold by pool and class. They have a limit of their own."""
    quarantined: int = 0
    """Number of requests in quarantine because they failed on endpoints that serve other requests."""
    queued_tenants: dict[tuple[ClassName, TenantId], int] = field(default_factory=dict[tuple[ClassName, TenantId], int])
    """Queued requests by class and tenant. Only tenants with queued requests have an entry."""


def held_by_pool(summary: Summary) -> dict[PoolName, int]:
    """Returns the number of requests on hold for each pool."""
    total: dict[PoolName, int] = {}
    for (pool, _), count in summary.held.items():
        total[pool] = total.get(pool, 0) + count
    return total
