"""The queue: requests enter, leave and expire here.

`backlog` and `fair_queue` decide the order. A request may wait as long as its class allows, counted over all attempts,
but only while its response could still start in time. A request that is held for the first endpoint of a pool (`holds`)
has a separate limit. The hold ends when an endpoint of any of its pools is live. From then on, the usual limit applies.

If a model has overflow pools, a timer of each of its requests shows when the request has waited long enough to use them
(`admission/overflow`).
"""

from collections.abc import Iterable

from headgate.core.admission.gate import hold_pool, hold_rejection, overflow_rule
from headgate.core.commands import Command, Hold
from headgate.core.overload import Overload
from headgate.core.queues.backlog import Backlog
from headgate.core.queues.holds import Holds
from headgate.core.queues.min_shares import MinShares
from headgate.core.request_state import Request
from headgate.core.routing.fleet import FleetState
from headgate.core.rules import Rules
from headgate.core.timers import NEVER, TimerHeap, Timers
from headgate.model.units import Duration, Instant, PoolName, RequestId, after, format_seconds


class Queue:
    __slots__ = (
        *("_fleet", "_overload", "_rules", "arrival", "backlog", "expiry_timers", "holds", "min_shares"),
        "overflow_timers",
    )

    def __init__(self, rules: Rules, fleet: FleetState, overload: Overload, timer_heap: TimerHeap) -> None:
        self._rules, self._fleet, self._overload = rules, fleet, overload
        self.min_shares = MinShares()
        self.backlog = Backlog(self.min_shares, fleet.engines.groups)
        self.expiry_timers: Timers[RequestId] = Timers(timer_heap)
        self.overflow_timers: Timers[RequestId] = Timers(timer_heap)
        """Times at which queued requests may overflow, or their budgets are checked again."""
        self.holds = Holds()
        self.arrival: Request | None = None
        """Request that has just been admitted to an empty queue. The dispatcher sends it at once or enqueues it."""

    def change_rules(self, rules: Rules) -> None:
        """Applies new rules and empties the backlog. The caller pushes the waiting requests again."""
        self._rules = rules
        self.holds.change_rules(rules)
        self.min_shares.change_rules(rules.min_shares)
        self.backlog = Backlog(self.min_shares, self._fleet.engines.groups)
        self.overflow_timers.clear_all()

    def regroup(self) -> None:
        """Updates the order of service after pools have begun or ceased to share engines."""
        if self._fleet.engines.regroup():
            self.backlog.regroup(self._fleet.engines.groups)
            self._fleet.recheck_all_pools()

    def admit(self, request: Request, now: Instant, out: list[Command]) -> None:
        """Accepts a new request."""
        if self.backlog.length or request.held_for is not None:
            self.enqueue(request, now, out)
        else:
            self.arrival = request

    def enqueue(self, request: Request, now: Instant, out: list[Command]) -> None:
        request.queued_since = now
        hold = request.held_for
        wait_ns = self.wait_ns_left(request, now) if hold is None else self._hold(request, hold, out)
        self._set_expiry(request, wait_ns, now)
        self.push(request, now)

    def _set_expiry(self, request: Request, wait_ns: Duration, now: Instant) -> None:
        expires, deadline = Instant(now + wait_ns), request.deadline
        if deadline is None or expires < deadline.at:
            self.expiry_timers.set(request.ticket.request_id, expires)

    def _set_overflow_timer(self, request: Request, now: Instant) -> None:
        """Sets the time at which the request may overflow, at the latest the end of its maximum wait."""
        rule, request_id = overflow_rule(request, self._rules), request.ticket.request_id
        if rule is None or request.overflow_pools:
            self.overflow_timers.clear(request_id)
            return
        bound = min(
            rule.after_ns - request.waited_ns + request.held_ns, self.wait_ns_left(request, request.queued_since)
        )
        due, deadline = Instant(max(now, request.queued_since + bound)), request.deadline
        if deadline is None or due < deadline.at:
            self.overflow_timers.set(request_id, due)

    def push(self, request: Request, now: Instant) -> None:
        if self._rules.overflow_pools:
            self._set_overflow_timer(request, now)
        if request.ticket.gateway:
            gateway = request.ticket.gateway
            request.isolated_member = gateway if gateway in self._fleet.health.reach.avoided else ""
        self.backlog.push(request)
        self._overload.enqueued(request)
        self._fleet.queue_changed(request.pools)
        if request.overflow_pools:
            self._fleet.queue_changed(request.overflow_pools)

    def add_overflow(self, request: Request, pools: tuple[PoolName, ...]) -> None:
        """Lets a queued request wait for these overflow pools, too."""
        self.backlog.add_overflow(request, pools)
        self._fleet.queue_changed(pools)

    def isolate_member(self, member: str, requests: Iterable[Request]) -> None:
        """Moves this member's queued requests to separate queues, because the member may use fewer endpoints."""
        for request in requests:
            if request.ticket.gateway == member and request.isolated_member != member:
                request.isolated_member = member
                self.backlog.requeue(request)

    def remove(self, request: Request, now: Instant) -> None:
        """Removes a request that ended or was cancelled while queued."""
        self.backlog.remove(request)
        self.dequeue(request, now)

    def dequeue(self, request: Request, now: Instant) -> None:
        """Updates timers and wait times of a request that is no longer in the backlog."""
        # The next request in the same queue may fit where this one did not.
        self._fleet.queue_changed(request.pools)
        self.expiry_timers.clear(request.ticket.request_id)
        if self._rules.overflow_pools:
            self.overflow_timers.clear(request.ticket.request_id)
            self._fleet.queue_changed(request.overflow_pools)
        self._overload.dequeued(request)
        if request.held_for is not None and self.holds.remove(request):
            request.held_ns = Duration(request.held_ns + now - request.queued_since)
        request.waited_ns = Duration(request.waited_ns + now - request.queued_since)

    # Holds

    def _hold(self, request: Request, pool: PoolName, out: list[Command]) -> Duration:
        """Holds a request. Returns the maximum hold time that its class allows."""
        self.holds.add(request, self._fleet)
        names = ", ".join(request.pools)
        reason = f"no endpoint in pool {names} is available; held until the first endpoint in pool {pool} starts"
        out.append(Hold(request.ticket.request_id, pool, request.service_class.name, reason))
        return Duration(max(0, (request.service_class.cold_start_wait_ns_max or 0) - request.held_ns))

    def release(self, now: Instant) -> None:
        """Ends the hold on requests for which an endpoint is live. From then on, they wait like all others."""
        for request in self.holds.pop_released(self._fleet, now):
            _end_hold(request, now)
            self.expiry_timers.clear(request.ticket.request_id)
            self._set_expiry(request, self.wait_ns_left(request, now), now)
            if self._rules.overflow_pools:
                self._set_overflow_timer(request, now)

    def retry_hold_pool(self, request: Request, now: Instant) -> PoolName | None:
        """Returns the pool for which a request may be held after an attempt, if none of its pools is live.

        If that pool already holds its maximum number of requests, returns None and the request waits like all others.
        """
        if self._fleet.live_count(request.pools):
            return None
        pool = hold_pool(request.service_class, request.pools, self._fleet, self._rules)
        if pool is None or hold_rejection(
            request, pool, self.backlog, self._fleet, self._rules, holds=self.holds, now=now
        ):
            return None
        return pool

    def update_hold(self, request: Request, now: Instant, *, held: bool) -> None:
        """Counts a waiting request as held or queued under a new policy. `held` is its state under the old policy."""
        request.held_for = hold_pool(request.service_class, request.pools, self._fleet, self._rules)
        if held and request.held_for is None:
            _end_hold(request, now)
        elif held:
            self.holds.add(request, self._fleet)

    def wait_ns_left(self, request: Request, now: Instant) -> Duration:
        """Returns how much longer the request may wait under its class's limit and latency target."""
        # The limit applies to the total over all attempts, excluding hold time.
        wait_ns = request.service_class.queue_wait_ns_max - request.waited_ns + request.held_ns
        if request.target is not None and not request.target_infeasible:
            # A response that cannot start in time even on the fastest endpoint is not worth computing.
            wait_ns = min(wait_ns, request.target - request.ttft_ns_min - now)
        if request.e2e_target is not None:
            wait_ns = min(wait_ns, request.e2e_target - request.service_ns - now)
        return Duration(wait_ns if wait_ns > 0 else 0)


def queue_timeout_reason(request: Request) -> str:
    """Returns why a request ends once it has reached its maximum wait or can no longer meet its target."""
    service_class, held = request.service_class, ""
    if request.held_ns:
        held = f" ({format_seconds(request.held_ns)} of it for an endpoint to start)"
    target = decisive_target(request)
    if request.waited_ns - request.held_ns < service_class.queue_wait_ns_max and target:
        why = f" and can no longer meet {target}"
    else:
        why = f', the maximum in class "{service_class.name}"'
    return f"waited {format_seconds(request.waited_ns)}{held}{why}{request.overflow_note}"


def decisive_target(request: Request) -> str:
    """Returns the target that determines how long the request may wait. Empty if only the maximum wait does."""
    service_class = request.service_class
    ttft_ns, e2e_ns, e2e_target = service_class.ttft_ns, request.e2e_ns, request.e2e_target
    start_by = NEVER if request.target is None or request.target_infeasible else request.target - request.ttft_ns_min
    if e2e_ns is not None and e2e_target is not None and e2e_target - request.service_ns < start_by:
        if request.completion_deadline is not None and request.completion_deadline.at == e2e_target:
            return f"the caller's deadline for the complete response ({format_seconds(e2e_ns)})"
        needs = f"of which the response needs about {format_seconds(request.service_ns)}"
        return f'the e2e target of class "{service_class.name}" ({format_seconds(e2e_ns)}, {needs})'
    return "" if ttft_ns is None else f'the TTFT target of class "{service_class.name}" ({format_seconds(ttft_ns)})'


def _end_hold(request: Request, now: Instant) -> None:
    """Ends a hold. The class's latency target and maximum wait are counted from this moment."""
    held_ns = now - request.queued_since
    request.waited_ns, request.held_ns = Duration(request.waited_ns + held_ns), Duration(request.held_ns + held_ns)
    request.queued_since = now
    if request.target is not None:
        ttft_ns = request.service_class.ttft_ns
        request.target = None if ttft_ns is None else after(now, ttft_ns)
    if request.e2e_target is not None:
        request.set_e2e_target(now)
