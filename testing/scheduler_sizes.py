"""Sizes of a scheduler's internal collections, for tests. The core has no hooks for this."""

from dataclasses import dataclass
from typing import TypeVar

from headgate.core.scheduler import Scheduler
from headgate.core.timers import Timers
from headgate.model.units import Instant

_Key = TypeVar("_Key", bound=str)


@dataclass(frozen=True, slots=True)
class SchedulerSizes:
    """Sizes of all collections that grow with load or with the number of endpoints."""

    requests: int
    keys: int
    """Idempotency-Keys of open requests."""
    deadlines: int
    attempts: int
    queued_per_tenant: int
    lines: int
    """Queues of waiting requests across all priority bands and tenants."""
    work: int
    """Number of kinds of queued work for which totals are kept."""
    turns_listed: int
    """Tenants in the round-robin lists of all pools. A tenant without queued requests stays until its next turn."""
    held: int
    """Pools and classes with queued requests that were on hold."""
    starts: int
    """Pool sets with requests on hold for a first endpoint, now or when that endpoint began starting."""
    pools_changed: int
    agenda: int
    """Timers of all kinds, including stale entries."""
    expiries: int
    """Active expiry timers. The next five fields count other kinds of active timer."""
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
    """Prompt and KV cache tokens reserved on endpoints."""
    limit_claims: int
    """Requests that count towards tenant limits."""
    tenants_with_credit: int
    pools_with_window: int


def scheduler_sizes(scheduler: Scheduler) -> SchedulerSizes:
    scheduler.next_wakeup()  # Removes stale entries from the tops of the heaps.
    fleet, backlog, budget = scheduler._state.fleet, scheduler._state.queue.backlog, scheduler._state.retry_budget
    bands = list(backlog._bands.values())
    return SchedulerSizes(
        requests=len(scheduler._state.requests.by_id),
        keys=len(scheduler._state.requests._idempotency_keys),
        deadlines=len(scheduler._state.requests.deadline_timers),
        attempts=len(scheduler._state.attempts),
        queued_per_tenant=len(backlog._per_tenant),
        lines=sum(len(lines) for band in bands for lines in band._waiting.values()),
        work=len(backlog.work._bands) + len(backlog.work._tenants),
        turns_listed=sum(len(turns._entries) for band in bands for turns in band.fair_queues.values()),
        held=len(backlog.held),
        starts=len(scheduler._state.queue.holds.starts),
        pools_changed=len(fleet.dispatchable),
        agenda=len(scheduler._state.timer_heap) + len(fleet.health.timer_heap),
        expiries=len(scheduler._state.queue.expiry_timers),
        prefills=len(scheduler._state.attempts.prefill_timers),
        hedges=len(scheduler._state.hedging.silence_timers),
        returns=len(fleet.health._return_timers),
        stalls=len(fleet.health._stall_timers),
        silences=len(fleet.health._staleness_timers),
        endpoints=len(fleet.endpoints),
        pools=len(fleet.pools),
        devices=len(fleet._placement.devices),
        shelved=sum(pool.headroom_count for pool in fleet.pools.values()),
        promised=sum(each.pending_tokens + each.kv_used + each.kv_reserved for each in fleet.endpoints.values()),
        limit_claims=len(scheduler._state.limits._claims),
        tenants_with_credit=len(budget._credit),
        pools_with_window=len(budget._pools),
    )


def timer_instants(alarms: Timers[_Key]) -> dict[_Key, Instant]:
    """The due time of each active timer of one kind."""
    agenda = alarms._timer_heap._heap
    return {key: moment for moment, number, kind, key in agenda if kind is alarms and alarms.is_current(key, number)}
