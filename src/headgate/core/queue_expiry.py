"""End of the queue wait: requests whose maximum wait or overflow check is due."""

from headgate.core.admission.admission import Admission
from headgate.core.admission.gate import Admitted, Rejection, check_policy, expected_wait, overflow_rule
from headgate.core.admission.overflow import next_check, overflow_from_queue
from headgate.core.commands import Command
from headgate.core.dispatcher import Dispatcher
from headgate.core.request_state import NO_CHECK, Request
from headgate.core.scheduler_state import SchedulerState
from headgate.core.termination import Termination
from headgate.model.outcome import Outcome
from headgate.model.units import Instant, format_seconds


class QueueExpiry:
    __slots__ = ("_admission", "_dispatcher", "_state", "_termination")

    def __init__(
        self, state: SchedulerState, admission: Admission, dispatcher: Dispatcher, termination: Termination
    ) -> None:
        self._state = state
        self._admission, self._dispatcher, self._termination = admission, dispatcher, termination

    def expire(self, now: Instant, out: list[Command]) -> None:
        """Ends requests that have reached their maximum queue time, unless they can move to other live pools."""
        state = self._state
        for request_id in state.queue.expiry_timers.pop_fired():
            request = state.requests.by_id[request_id]
            if request.running is not None:
                continue  # It got a slot when another request left for an overflow pool.
            if self._defers(request, now, out):
                continue
            state.queue.remove(request, now)
            if state.fleet.live_count(request.pools):
                self._termination.end_queue_timeout(request, now, out)
            elif not self._move_to_live_pools(request, now, out):
                pools, waited = ", ".join(request.pools), format_seconds(request.waited_ns)
                reason = f"no endpoint in pool {pools} became ready in {waited}"
                wait = expected_wait(request.pools, state.fleet, state.rules, state.queue.holds, now)
                self._termination.end(request, Outcome.NO_ENDPOINTS, reason, now, out, retry_after=wait)

    def _defers(self, request: Request, now: Instant, out: list[Command]) -> bool:
        """Returns whether the timer of a queued request was set for a check of its overflow, and makes that check.

        If an overflow pool has a free slot, the request goes there at once, so that the next request whose timer has
        fired does not count on the same slot. Otherwise sets the timer again, unless the maximum wait has ended.
        """
        if request.expires_at == NO_CHECK:
            return False
        state = self._state
        rule = overflow_rule(request, state.rules)
        other = None if rule is None else overflow_from_queue(request, rule, state, now)
        if other is not None and self._overflow(request, other, now, out):
            return True
        if now >= request.expires_at:
            return False
        due = request.expires_at if rule is None else min(request.expires_at, next_check(rule, now))
        state.queue.expiry_timers.set(request.ticket.request_id, due)
        return True

    def _overflow(self, request: Request, other: Admitted, now: Instant, out: list[Command]) -> bool:
        """Sends a queued request to its overflow pools. If another request gets the slot, it returns to its own pools.

        Returns whether the request was sent.
        """
        queue, held_for, expires_at = self._state.queue, request.held_for, request.expires_at
        own = Admitted(other.service_class, request.pools, request.model, request.route)
        queue.remove(request, now)
        request.held_for = None
        self._admission.assign(request, other, now)
        queue.enqueue(request, now, out)
        self._dispatcher.dispatch(now, out)
        if request.running is not None:
            return True
        queue.remove(request, now)
        request.held_for = held_for
        self._admission.assign(request, own, now)
        queue.enqueue(request, now, out)
        request.expires_at = expires_at
        return False

    def _move_to_live_pools(self, request: Request, now: Instant, out: list[Command]) -> bool:
        """Moves a request that has been waiting for cheap pools to its other pools.

        Returns False if none of those is live. The caller then ends the request.
        """
        state = self._state
        verdict = check_policy(state.rules.without_unknown_names(request.ticket), state.rules, request.route)
        if isinstance(verdict, Rejection) or request.fell_back or not state.budgets.is_cost_capped(request):
            return False
        self._admission.assign(request, verdict, now)
        if live := state.fleet.live_count(request.pools) > 0:
            request.held_for = None
            state.queue.enqueue(request, now, out)
        return live
