"""How much does a scheduler remember? A read-only view for tests; the core has no hooks for them."""

from dataclasses import dataclass
from typing import TypeVar

from headgate.core.alarms import Alarms
from headgate.core.scheduler import Scheduler
from headgate.model.units import Instant

_Key = TypeVar("_Key", bound=str)


@dataclass(frozen=True, slots=True)
class Inside:
    """The length of everything that grows with work or with endpoints."""

    requests: int
    keys: int
    """Idempotency-Keys of open requests."""
    deadlines: int
    attempts: int
    queued_per_tenant: int
    lines: int
    """Lines of waiting requests, over all bands and tenants."""
    work: int
    """Kinds of waiting work that are summed up."""
    turns_listed: int
    """Tenants on the list of some pool; one that waits no longer stays until its turn comes."""
    held: int
    """Pools and classes of which requests that were held wait."""
    starts: int
    """Sets of pools for whose first endpoint somebody is held, or was when it began to start."""
    pools_changed: int
    agenda: int
    """Alarms of all kinds, with those that no longer count."""
    expiries: int
    """Alarms that are set, of this kind and of the five that follow."""
    prefills: int
    hedges: int
    returns: int
    stalls: int
    silences: int
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
    fleet, backlog, budget = scheduler._state.fleet, scheduler._state.queue.backlog, scheduler._state.retry_budget
    bands = list(backlog._bands.values())
    return Inside(
        requests=len(scheduler._state.requests.by_id),
        keys=len(scheduler._state.requests._keys),
        deadlines=len(scheduler._state.requests.deadlines),
        attempts=len(scheduler._state.attempts),
        queued_per_tenant=len(backlog._per_tenant),
        lines=sum(len(lines) for band in bands for lines in band._waiting.values()),
        work=len(backlog.work._bands) + len(backlog.work._tenants),
        turns_listed=sum(len(turns._listed) for band in bands for turns in band._turns.values()),
        held=len(backlog.held),
        starts=len(scheduler._state.queue.holds.starts),
        pools_changed=len(fleet.changed),
        agenda=len(scheduler._state.agenda) + len(fleet.health.agenda),
        expiries=len(scheduler._state.queue.expiries),
        prefills=len(scheduler._state.attempts.prefills),
        hedges=len(scheduler._state.hedging.silent),
        returns=len(fleet.health._returns),
        stalls=len(fleet.health._stalls),
        silences=len(fleet.health._silences),
        endpoints=len(fleet.endpoints),
        pools=len(fleet.pools),
        devices=len(fleet._placement.devices),
        shelved=sum(pool.places for pool in fleet.pools.values()),
        promised=sum(each.pending_tokens + each.kv_used + each.kv_reserved for each in fleet.endpoints.values()),
        limit_claims=len(scheduler._state.limits._claims),
        tenants_with_credit=len(budget._credit),
        pools_with_window=len(budget._pools),
    )


def moments(alarms: Alarms[_Key]) -> dict[_Key, Instant]:
    """When each alarm of a kind rings."""
    agenda = alarms._agenda._heap
    return {key: moment for moment, number, kind, key in agenda if kind is alarms and alarms.counts(key, number)}
