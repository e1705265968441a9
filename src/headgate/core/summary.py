"""What is the state of things, for whoever wants to look?

A read-only picture of the scheduler at one moment, made on demand. Nothing in it can be used
to reach back into the core.
"""

from dataclasses import dataclass, field

from headgate.model.endpoint import EndpointState, EndpointTrouble
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
    """What of its KV cache is in use, as far as was told."""
    suspected: bool = False
    """Whether the last that it was given failed, or it has stopped telling of itself."""
    decode_percent: int = 100
    prefill_percent: int = 100
    """How long answers and prompts take there, beside what was said of it: above a hundred it is slower."""
    drained: bool = False
    """Whether an operator has ordered that nothing new goes there."""
    unserved_members: tuple[str, ...] = ()
    """Members of the cell that fail at it while most others are served, so that their failures do not count."""
    trouble: EndpointTrouble | None = None
    """The reason why it fails its probes, was ejected or is on trial; None if none of these."""
    trouble_detail: str = ""
    """The observed error."""
    probe_fails: bool = False
    sequences_max: int | None = None
    """The most requests that its engine runs at once, as learned by `core/routing/sequence_limit.py`."""
    kv_full: bool = False
    """Whether its KV cache has no room for another request of average size, with what running requests may grow to."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """What is given up at a pool under overload; of those who may use it, the most."""

    pool: PoolName
    level: int
    """Of the ladder."""
    shed_ppm: int
    """Of what arrives, so many in a million are refused by rank."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Engine time that waits in a band, of those who may use the same pools."""

    pools: tuple[PoolName, ...]
    band: int
    work_ns: int


@dataclass(frozen=True, slots=True)
class Summary:
    policy_hash: str
    queued: dict[ClassName, int]
    """Requests that wait, by class, less those that are held; every class of the policy is there."""
    requests: int
    """Requests that have not ended."""
    endpoints: tuple[EndpointSummary, ...]
    given_up: tuple[GivenUp, ...] = ()
    """Pools at which anybody has asked to be served, also those where nothing is given up."""
    prefix_hashes: tuple[tuple[PoolName, int], ...] = ()
    """Pools of which it is known who holds which beginnings, and how many hashes that takes."""
    waiting: tuple[Waiting, ...] = ()
    held: dict[tuple[PoolName, ClassName], int] = field(default_factory=dict[tuple[PoolName, ClassName], int])
    """Requests that came while a pool had no endpoint and wait, by pool and class; they have a bound of their own."""
    quarantined: int = 0
    """Requests that are rejected because they failed on endpoints that serve others."""
    queued_tenants: dict[tuple[ClassName, TenantId], int] = field(default_factory=dict[tuple[ClassName, TenantId], int])
    """The same by class and tenant; only who has any waiting is there, so the bounds of the queues are its own."""


def held_by_pool(summary: Summary) -> dict[PoolName, int]:
    """How many requests that were held for an endpoint of each pool wait."""
    total: dict[PoolName, int] = {}
    for (pool, _), count in summary.held.items():
        total[pool] = total.get(pool, 0) + count
    return total
