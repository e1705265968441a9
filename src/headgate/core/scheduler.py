"""The scheduler: a deterministic function from events to commands.

A host passes events and the time, and the scheduler returns commands. It has no clock, I/O, randomness or log. The same
events at the same times always produce the same commands, in any host.

A request is either queued or in flight, and it ends exactly once. It is bound to an endpoint only when that endpoint
has capacity (late binding), so its position can change while it waits. Three invariants hold after every event:

- No endpoint has headroom while the first request of a queue that it could serve is waiting, unless a priority band is
  limited to its minimum share.
- Every queued request is within its maximum wait and can still meet its target. No request whose deadline has passed is
  queued or in flight.
- Every occupied slot belongs to an attempt that the host has not yet reported as ended. The slot stays occupied even if
  its request ends earlier.

An endpoint serves a limited number of distinct LoRA adapters at the same time. If a request's adapter has no slot, the
least recently used adapter gives up its slot after its turn (`routing/adapter_turns`).

If no endpoint accepts requests but the pool starts one on demand, a request can be put on hold (`queues/holds`). Held
requests have separate limits on queue length and wait. In all other respects they are ordinary queued requests.

Capacity is shared in proportion to predicted engine time, corrected by the usage that engines report. The cost of a
request is estimated on arrival (`estimate`), charged when the request is sent, and settled when it has ended
(`attempts`).

Known limitations: a request that does not fit blocks the requests behind it in its queue, and smaller requests from
other tenants can keep overtaking a large request until it reaches its maximum wait.

Related modules: `admission/admission` admits requests, `dispatcher` sends them, `termination` retries and ends them,
`queue_expiry` ends their wait, `mirror_dispatch` sends copies of them, `takeover` continues the work of an earlier
scheduler, and `policy_update` applies a new policy. All of them share `scheduler_state`.
"""

from collections.abc import Iterable

from headgate.core.admission.admission import Admission
from headgate.core.admission.limits import QuotaShortage
from headgate.core.commands import Command
from headgate.core.counters import Counters, LearnedSpeed
from headgate.core.dispatcher import Dispatcher
from headgate.core.events import (
    AttemptEnded,
    AttemptReported,
    AttemptsProgressed,
    BudgetsSynced,
    Event,
    FirstToken,
    FleetEvent,
    PolicyChanged,
    RequestArrived,
    RequestRejected,
    RequestReported,
    RequestSettled,
    RequestWithdrawn,
    SharesAssigned,
    TakeoverReport,
    TimerFired,
)
from headgate.core.mirror_dispatch import MirrorDispatch
from headgate.core.policy_update import PolicyUpdate
from headgate.core.queue_expiry import QueueExpiry
from headgate.core.routing.router import LeastTimeRouter
from headgate.core.scheduler_state import SchedulerState
from headgate.core.share_update import ShareUpdate
from headgate.core.summary import Summary, WaitingWork
from headgate.core.takeover import Takeover
from headgate.core.termination import Termination
from headgate.model.limits import LimitsLeft
from headgate.model.money import BudgetStatus, EndpointTime
from headgate.model.units import Duration, Instant, TenantId


class Scheduler:
    def __init__(self, *, scheduler_count: int = 1, router: LeastTimeRouter | None = None) -> None:
        """`scheduler_count` is the number of schedulers that share the endpoints and their time."""
        self._state = state = SchedulerState(scheduler_count=scheduler_count, router=router or LeastTimeRouter())
        self._admission = Admission(state)
        self._dispatcher = Dispatcher(state, self._admission)
        self._termination = Termination(state, self._admission, self._dispatcher)
        self._queue_expiry = QueueExpiry(state, self._admission, self._dispatcher, self._termination)
        self._mirrors = MirrorDispatch(state, self._admission, self._dispatcher, self._termination)
        self._takeover = Takeover(state, self._admission, self._dispatcher, self._termination)
        self._policy_update = PolicyUpdate(state, self._admission, self._termination)
        self._share_update = ShareUpdate(state)
        self._now = Instant(0)

    def handle(self, event: Event, now: Instant) -> list[Command]:  # noqa: C901 (another call for each event is slow)
        assert now >= self._now, "time went backwards: the host must stamp events with max(last, clock)"
        self._now = now
        state = self._state
        out: list[Command] = []
        if due := state.timer_heap.due_at <= now:
            state.timer_heap.pop_due(now)
            self._queue_expiry.expire(now, out)
            self._termination.end_past_deadlines(event, now, out)
            state.attempts.fire_prefill_timers(now)
            self._policy_update.expire(now, out)
            self._share_update.expire(now)
        fleet, overload = state.fleet, state.overload
        if overload.tick_at is not None:
            overload.tick(fleet, state.queue.min_shares, now)
        # The most frequent events first. A `match` would be slower: it looks up the fields of each class.
        if isinstance(event, RequestArrived):
            if event.ticket.mirror_route:
                self._mirrors.send(event.ticket, now, out)
            else:
                self._share_update.apply_to(event.ticket.tenant)
                self._admission.admit(event.ticket, now, out)
        elif isinstance(event, AttemptEnded):
            self._termination.attempt_ended(event, now, out)
        elif isinstance(event, AttemptsProgressed):
            state.attempts.record_progress(event, now)
        elif isinstance(event, FirstToken):
            self._dispatcher.first_token(
                event.request_id, event.attempt, now, out, delivered=event.delivered, limits=event.limits
            )
        else:
            self._handle_other(event, now, out)
        if fleet.pools_with_losses or fleet.health.timer_heap.due_at <= now:
            self._termination.check_endpoints(now, out)
        if state.queue.holds.starts:
            state.queue.release(now)
        if fleet.dispatchable or state.queue.arrival is not None:
            self._dispatcher.dispatch(now, out)
        if due:
            self._dispatcher.hedge_silent(now, out)
        if state.mirrors or state.budgets.crossings:
            self._mirrors.stop_waited_for(now, out)
            out += state.budgets.pop_crossings(now)
        overload.watch(now)
        return out

    def _handle_other(
        self,
        event: RequestWithdrawn
        | TimerFired
        | RequestRejected
        | FleetEvent
        | PolicyChanged
        | BudgetsSynced
        | SharesAssigned
        | TakeoverReport,
        now: Instant,
        out: list[Command],
    ) -> None:
        """Handles events that are less frequent than requests and their attempts."""
        match event:
            case TimerFired():
                pass
            case RequestWithdrawn(request_id, cause):
                self._termination.withdraw(request_id, cause, now, out)
            case RequestRejected(tenant):
                self._share_update.apply_to(tenant)
                self._state.limits.count_rejected(tenant, now)
            case PolicyChanged(policy, policy_hash):
                self._policy_update.change(policy, policy_hash, now, out)
            case AttemptReported():
                self._takeover.attempt_reported(event, now, out)
            case RequestReported():
                self._takeover.request_reported(event, now, out)
            case RequestSettled():
                self._takeover.request_settled(event, now)
            case BudgetsSynced():
                self._state.budgets.sync(event)
            case SharesAssigned():
                self._share_update.assign(event, now)
            case _:
                if (readmitted := self._state.fleet.handle(event, now)) is not None:
                    out.append(readmitted)
                if self._state.fleet.engines.changed:
                    self._state.queue.regroup()

    def next_wakeup(self) -> Instant | None:
        """Returns when the host must send `TimerFired` if no other event occurs."""
        state = self._state
        soonest = state.timer_heap.next()
        of_endpoints = state.fleet.health.timer_heap.next()
        if of_endpoints is not None and (soonest is None or of_endpoints < soonest):
            soonest = of_endpoints
        tick_at = state.overload.tick_at
        if tick_at is not None and (soonest is None or tick_at < soonest):
            soonest = tick_at
        return soonest

    # Takeover

    def counters(self, now: Instant) -> Counters:
        """Returns the snapshot for the next scheduler."""
        return self._takeover.counters(now)

    def restore(self, counters: Counters, now: Instant, *, snapshot_age_ns: Duration = Duration(0)) -> None:
        """Restores the snapshot of an earlier scheduler, taken at least `snapshot_age_ns` nanoseconds ago.

        Names that are no longer in the policy are dropped.
        """
        assert now >= self._now, "time went backwards: the host must stamp events with max(last, clock)"
        self._takeover.restore(counters, now, snapshot_age_ns=snapshot_age_ns)
        self._now = now

    def learned_speeds(self) -> tuple[LearnedSpeed, ...]:
        """Returns the learned speed of each endpoint, to be stored across a restart."""
        return self._state.fleet.learned_speeds()

    def restore_speeds(self, speeds: Iterable[LearnedSpeed]) -> None:
        """Restores stored speeds. Call it before any endpoint joins."""
        self._state.fleet.restore_speeds(speeds)

    # Observation

    def pop_endpoint_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        """Returns how each endpoint has spent its time since the last call. No decision depends on it."""
        return self._state.fleet.pop_times(now)

    def limits_left(self, tenant: TenantId, now: Instant) -> LimitsLeft | None:
        """Returns the remaining rate limits of a tenant. None if it has no limits."""
        return self._state.limits.left(tenant, now)

    def limit_reached(self, tenant: TenantId, now: Instant) -> QuotaShortage | None:
        """Returns the limit that any request from the tenant would exceed now."""
        return self._state.limits.reached(tenant, now)

    def budget_status(self, now: Instant, tenant: TenantId | None = None) -> tuple[BudgetStatus, ...]:
        """Returns the state of every budget, or of the budgets on one tenant's path."""
        return self._state.budgets.left(now, tenant)

    def summary(self) -> Summary:
        state = self._state
        fleet, backlog = state.fleet, state.queue.backlog
        return Summary(
            policy_hash=state.rules.hash,
            queued={each.name: backlog.queued_in_class(each.name) for each in state.rules.policy.classes},
            requests=len(state.requests.by_id),
            endpoints=tuple(each.summary() for each in fleet.endpoints.values()),
            degradation=tuple(state.overload.degradation_by_pool()),
            prefix_hashes=tuple((name, size) for name, each in fleet.pools.items() if (size := each.prefixes.size)),
            sessions=tuple((name, size) for name, each in fleet.pools.items() if (size := each.sessions.size)),
            prefix_bytes=tuple(
                (name, each.prefixes.memory_bytes) for name, each in fleet.pools.items() if each.prefixes.size
            ),
            waiting_work=tuple(WaitingWork(*where, work) for where, work in backlog.work.by_pools_and_band().items()),
            held=dict(backlog.held),
            queued_tenants=backlog.queued_by_tenant(),
            quarantined=state.blame.quarantined_count(self._now),
        )
