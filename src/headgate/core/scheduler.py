"""What is to be done about what just happened?

The scheduler is a function of what happened. A host brings it events and the time; it answers
with commands. It has no clock, no I/O, no randomness and no log of its own, so the same events
at the same times always give the same commands, in whichever host it runs.

Theory of operation. A request is either queued or in flight, and ends exactly once. It is
bound to an endpoint only when that endpoint has room (late binding), so that as long as it
waits its order can still change. Three promises hold after every event:

- no endpoint has headroom while the head of a line that it could take waits, unless a band is
  held at its floor;
- nothing is queued that has waited too long or whose answer could no longer begin in time, and
  nothing whose caller's deadline has passed is still queued or in flight;
- every place taken at an endpoint belongs to an attempt that the host has not yet reported
  as ended. A place outlives its request where the request ended first.

Where no endpoint takes work and one is started when it is asked for, a request may be held meanwhile (`queues/holds`):
it waits by other bounds of length and time, and is a queued request as any other in all else.

All sharing is in predicted engine time, trued up by what engines report: what a request takes
is measured at its arrival (`measure`), charged when it is sent and settled when it has ended
(`attempts`).

What is not ideal: what does not fit holds up those behind it in its line, and a large request
may be passed by small ones of others until its time is over.

Where to look: `admission/admission` lets requests in, `dispatcher` sends them, `endings` retries and ends them,
`takeover` goes on with the work of a predecessor and `policy_update` applies a new policy. They share the parts of
`scheduler_state`.
"""

from collections.abc import Iterable

from headgate.core.admission.admission import Admission
from headgate.core.admission.limits import Shortage
from headgate.core.commands import Command
from headgate.core.counters import Counters, LearnedSpeed
from headgate.core.dispatcher import Dispatcher
from headgate.core.endings import Endings
from headgate.core.events import (
    AttemptEnded,
    AttemptReported,
    BudgetsTold,
    Event,
    FirstToken,
    FleetEvent,
    PolicyChanged,
    Progressed,
    Report,
    RequestArrived,
    RequestRejected,
    RequestReported,
    RequestSettled,
    RequestWithdrawn,
    TimerFired,
)
from headgate.core.policy_update import PolicyUpdate
from headgate.core.routing.least_seconds import LeastSeconds
from headgate.core.scheduler_state import SchedulerState
from headgate.core.summary import Summary, Waiting
from headgate.core.takeover import Takeover
from headgate.model.limits import LimitsLeft
from headgate.model.money import BudgetLeft, EndpointTime
from headgate.model.units import Duration, Instant, TenantId


class Scheduler:
    def __init__(self, *, counted_by: int = 1, router: LeastSeconds | None = None) -> None:
        """`counted_by` is how many schedulers share the endpoints, and so the time of each."""
        self._state = state = SchedulerState(counted_by=counted_by, router=router or LeastSeconds())
        self._admission = Admission(state)
        self._dispatcher = Dispatcher(state)
        self._endings = Endings(state, self._admission, self._dispatcher)
        self._takeover = Takeover(state, self._admission, self._dispatcher, self._endings)
        self._policy_update = PolicyUpdate(state, self._admission, self._endings)
        self._now = Instant(0)

    def handle(self, event: Event, now: Instant) -> list[Command]:
        assert now >= self._now, "time went backwards: the host must stamp events with max(last, clock)"
        self._now = now
        state = self._state
        out: list[Command] = []
        if due := state.agenda.ring(now):
            self._endings.expire(now, out)
            self._endings.miss_deadlines(event, now, out)
            state.attempts.prefilled(now)
            self._policy_update.end_orders(now)
        state.overload.tick(state.fleet, state.queue.floors, now)
        match event:
            case RequestArrived(ticket):
                self._admission.arrive(ticket, now, out)
            case FirstToken():
                self._dispatcher.first_token(event, now, out)
            case Progressed():
                state.attempts.progressed(event, now)
            case AttemptEnded():
                self._endings.attempt_ended(event, now, out)
            case RequestWithdrawn(request_id, cause):
                self._endings.withdraw(request_id, cause, now, out)
            case TimerFired():
                pass
            case _:
                self._told(event, now, out)
        self._endings.watch_endpoints(now, out)
        if state.queue.holds.starts:
            state.queue.release(now)
        if state.fleet.changed:
            self._dispatcher.dispatch(now, out)
        if due:
            self._dispatcher.hedge_silent(now, out)
        state.overload.watch(now)
        if state.budgets.news:
            out += state.budgets.take_news(now)
        return out

    def _told(
        self,
        event: RequestRejected | FleetEvent | PolicyChanged | BudgetsTold | Report,
        now: Instant,
        out: list[Command],
    ) -> None:
        """What is not about one request of ours."""
        match event:
            case RequestRejected(tenant):
                self._state.limits.take_rejected(tenant, now)
            case PolicyChanged(policy, policy_hash):
                self._policy_update.change(policy, policy_hash, now, out)
            case AttemptReported():
                self._takeover.attempt_reported(event, now, out)
            case RequestReported():
                self._takeover.request_reported(event, now, out)
            case RequestSettled():
                self._takeover.request_settled(event, now)
            case BudgetsTold():
                self._state.budgets.told(event)
            case _:
                if (readmitted := self._state.fleet.told(event, now)) is not None:
                    out.append(readmitted)

    def next_wakeup(self) -> Instant | None:
        """When the host must call again, if nothing happens before."""
        state = self._state
        soonest = state.agenda.next()
        for other in (state.fleet.health.agenda.next(), state.overload.next_wakeup()):
            if other is not None and (soonest is None or other < soonest):
                soonest = other
        return soonest

    # From one scheduler to the next

    def counters(self, now: Instant) -> Counters:
        """What a successor must know that nobody else can tell it."""
        return self._takeover.counters(now)

    def restore(self, counters: Counters, now: Instant, *, told_ns_ago: Duration = Duration(0)) -> None:
        """Goes on from what a predecessor has counted and learned, at least so long ago.

        What its policy does not name any more is left out.
        """
        assert now >= self._now, "time went backwards: the host must stamp events with max(last, clock)"
        self._takeover.restore(counters, now, told_ns_ago=told_ns_ago)
        self._now = now

    def learned_speeds(self) -> tuple[LearnedSpeed, ...]:
        """The learned speed of each endpoint, to be kept across a restart."""
        return self._state.fleet.learned_speeds()

    def recall_speeds(self, speeds: Iterable[LearnedSpeed]) -> None:
        """Goes on from speeds that were kept, before any endpoint joins."""
        self._state.fleet.recall_speeds(speeds)

    # For those who look

    def take_endpoint_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        """How each endpoint has spent its time since this was last asked; no decision goes by it."""
        return self._state.fleet.take_times(now)

    def limits_left(self, tenant: TenantId, now: Instant) -> LimitsLeft | None:
        """What a tenant has left of its rates; None where it has none."""
        return self._state.limits.left(tenant, now)

    def limit_reached(self, tenant: TenantId, now: Instant) -> Shortage | None:
        """The limit that any request of the tenant would exceed at this moment."""
        return self._state.limits.reached(tenant, now)

    def budgets_left(self, now: Instant, tenant: TenantId | None = None) -> tuple[BudgetLeft, ...]:
        """Where every budget stands; of a tenant, those of its path."""
        return self._state.budgets.left(now, tenant)

    def summary(self) -> Summary:
        state = self._state
        fleet, backlog = state.fleet, state.queue.backlog
        return Summary(
            policy_hash=state.rules.hash,
            queued={each.name: backlog.in_class(each.name) for each in state.rules.policy.classes},
            requests=len(state.requests.by_id),
            endpoints=tuple(each.seen() for each in fleet.endpoints.values()),
            given_up=tuple(state.overload.given_up()),
            prefix_hashes=tuple((name, size) for name, each in fleet.pools.items() if (size := each.prefixes.size)),
            waiting=tuple(Waiting(*where, work) for where, work in backlog.work.by_pools_and_band().items()),
            held=dict(backlog.held),
            queued_tenants=backlog.by_tenant(),
            quarantined=state.blame.count(self._now),
        )
