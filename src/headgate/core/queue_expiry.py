"""Queued requests that have waited long enough to overflow, or as long as they may."""

from headgate.core.admission.admission import Admission
from headgate.core.admission.gate import Rejection, check_policy, expected_wait
from headgate.core.admission.overflow import overflow_from_queue
from headgate.core.commands import Command
from headgate.core.dispatcher import Dispatcher
from headgate.core.request_state import Request
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
        """Ends requests that have reached their maximum queue time, unless they can move to other live pools.

        Requests that may overflow from now on get the free slots of their overflow pools before that.
        """
        state = self._state
        if due := state.queue.overflow_timers.pop_fired():
            for request_id in due:
                overflow_from_queue(state.requests.by_id[request_id], state, now)
            self._dispatcher.dispatch(now, out)
        for request_id in state.queue.expiry_timers.pop_fired():
            request = state.requests.by_id[request_id]
            state.queue.remove(request, now)
            if state.fleet.live_count(request.pools):
                self._termination.end_queue_timeout(request, now, out)
            elif not self._move_to_live_pools(request, now, out):
                pools, waited = ", ".join(request.pools), format_seconds(request.waited_ns)
                reason = f"no endpoint in pool {pools} became ready in {waited}{request.overflow_note}"
                wait = expected_wait(request.pools, state.fleet, state.rules, state.queue.holds, now)
                self._termination.end(request, Outcome.NO_ENDPOINTS, reason, now, out, retry_after=wait)

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
