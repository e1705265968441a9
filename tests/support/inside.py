"""How much does a scheduler remember? A read-only view for tests; the core has no hooks for them."""

from dataclasses import dataclass

from headgate.core.alarms import Alarms
from headgate.core.scheduler import Scheduler
from headgate.model.units import EndpointId, RequestId


@dataclass(frozen=True, slots=True)
class Inside:
    """The length of everything that grows with work or with endpoints."""

    requests: int
    keys: int
    """Idempotency-Keys of open requests."""
    deadlines: tuple[int, int]
    """As `expiries`, of the callers."""
    attempts: int
    queued_per_tenant: int
    lines: int
    """Lines of waiting requests, over all bands and tenants."""
    work: int
    """Kinds of waiting work that are summed up."""
    turns_listed: int
    """Tenants on the list of some pool; one that waits no longer stays until its turn comes."""
    pools_changed: int
    expiries: tuple[int, int]
    """Alarms alive, and entries of their heap."""
    prefills: tuple[int, int]
    hedges: tuple[int, int]
    returns: tuple[int, int]
    stalls: tuple[int, int]
    silences: tuple[int, int]
    endpoints: int
    pools: int
    devices: int
    shelved: int
    promised: int
    """Tokens of prompts and of KV cache that endpoints have been promised."""
    limit_claims: int
    """Requests that count against limits of their tenants."""
    tenants_with_credit: int
    pools_with_window: int


def inside(scheduler: Scheduler) -> Inside:
    scheduler.next_wakeup()  # Takes the husks off the tops of the heaps.
    fleet, backlog, budget = scheduler._fleet, scheduler._backlog, scheduler._retry_budget
    bands = list(backlog._bands.values())
    return Inside(
        requests=len(scheduler._requests.by_id),
        keys=len(scheduler._requests._keys),
        deadlines=_lengths(scheduler._requests.deadlines),
        attempts=len(scheduler._attempts),
        queued_per_tenant=len(backlog._per_tenant),
        lines=sum(len(lines) for band in bands for lines in band._waiting.values()),
        work=len(backlog.work._bands) + len(backlog.work._tenants),
        turns_listed=sum(len(turns._listed) for band in bands for turns in band._turns.values()),
        pools_changed=len(fleet.changed),
        expiries=_lengths(scheduler._expiries),
        prefills=_lengths(scheduler._attempts.prefills),
        hedges=_lengths(scheduler._hedging.silent),
        returns=_lengths(fleet._returns),
        stalls=_lengths(fleet._stalls),
        silences=_lengths(fleet._silences),
        endpoints=len(fleet.endpoints),
        pools=len(fleet.pools),
        devices=len(fleet._devices),
        shelved=sum(pool._places for pool in fleet.pools.values()),
        promised=sum(each.pending_tokens + each.kv_used + each.kv_reserved for each in fleet.endpoints.values()),
        limit_claims=len(scheduler._limits._claims),
        tenants_with_credit=len(budget._credit),
        pools_with_window=len(budget._pools),
    )


def _lengths(alarms: Alarms[RequestId] | Alarms[EndpointId]) -> tuple[int, int]:
    return len(alarms._due), len(alarms._heap)
