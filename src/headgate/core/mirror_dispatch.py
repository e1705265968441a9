"""Copies of requests for mirrors: when is a copy sent, and when is it stopped?

A gateway submits a copy of a request when the response to the request itself begins. A copy uses only idle capacity: it
is sent at once or not at all, it never waits in a queue, and it is stopped as soon as a request waits for its pool. It
belongs to a separate class and a separate tenant, so it does not count toward the caller's limits, budgets, fair share,
predictions or objectives. It has one attempt, which is neither retried nor hedged, and no fallback. The platform pays
for it.
"""

from headgate.core.admission.admission import Admission
from headgate.core.admission.gate import Rejection
from headgate.core.attempts import abort
from headgate.core.commands import Command
from headgate.core.dispatcher import Dispatcher
from headgate.core.estimate import estimate
from headgate.core.request_state import Request
from headgate.core.routing.model_routes import mirror_pools
from headgate.core.routing.router import Candidate
from headgate.core.scheduler_state import SchedulerState
from headgate.core.termination import Termination
from headgate.model.outcome import Outcome
from headgate.model.ticket import Ticket
from headgate.model.units import Instant, PoolName


class MirrorDispatch:
    __slots__ = ("_admission", "_dispatcher", "_state", "_termination")

    def __init__(
        self, state: SchedulerState, admission: Admission, dispatcher: Dispatcher, endings: Termination
    ) -> None:
        self._state = state
        self._admission = admission
        self._dispatcher = dispatcher
        self._termination = endings

    def send(self, ticket: Ticket, now: Instant, out: list[Command]) -> None:
        """Sends a copy if its pools have idle capacity. Otherwise ends it."""
        state = self._state
        assert ticket.request_id not in state.requests.by_id, f"request {ticket.request_id} arrived twice"
        request = self._request(ticket, now)
        if isinstance(request, Rejection):
            out.append(self._admission.rejected_end(ticket, request, now))
            return
        chosen = self._candidate(request)
        if isinstance(chosen, Rejection):
            out.append(self._admission.rejected_end(ticket, chosen, now))
            return
        state.requests.sequence += 1
        state.requests.add(request)
        state.mirrors[ticket.request_id] = request
        self._dispatcher.send_copy(request, chosen, now, out)

    def _request(self, ticket: Ticket, now: Instant) -> Request | Rejection:
        state = self._state
        rules = state.rules
        service_class = rules.mirror_class(ticket)
        model = rules.models.get(ticket.model)
        pools = () if model is None else mirror_pools(model, ticket.mirror_route)
        if service_class is None or not pools:
            reason = f'route "{ticket.mirror_route}" of model "{ticket.model}" has no mirror any more'
            return Rejection(Outcome.NO_ENDPOINTS, reason, service_class)
        request = Request(ticket, service_class, pools, state.requests.sequence + 1, now)
        estimate(request, state.predictions, state.fleet, rules)
        return request

    def _candidate(self, request: Request) -> Candidate | Rejection:
        """Returns the endpoint for a copy, or why the copy is not sent."""
        state, pools, service_class = self._state, request.pools, request.service_class
        names = ", ".join(pools)
        if not state.fleet.live_count(pools):
            return Rejection(Outcome.NO_ENDPOINTS, f"no endpoint in pool {names} is available", service_class)
        if state.overload.is_under_pressure(pools):
            return Rejection(Outcome.SHED, f"pool {names} is overloaded", service_class)
        if self._is_waited_for(pools):
            return Rejection(Outcome.SHED, f"requests wait for pool {names}", service_class)
        chosen = state.router.choose(request, pools, state.fleet)
        reason = f"no endpoint in pool {names} has idle capacity"
        return Rejection(Outcome.QUEUE_FULL, reason, service_class) if chosen is None else chosen

    def _is_waited_for(self, pools: tuple[PoolName, ...]) -> bool:
        """Returns whether a request waits for one of these pools, or for a pool that shares engines with one."""
        backlog, groups = self._state.queue.backlog, self._state.fleet.engines.groups
        return backlog.length > 0 and any(
            backlog.is_waited_for(each) for name in pools for each in groups.get(name, (name,))
        )

    def stop_waited_for(self, now: Instant, out: list[Command]) -> None:
        """Stops the copies in each pool that a request waits for."""
        state = self._state
        if not state.queue.backlog.length:
            return
        waited_for: dict[PoolName, bool] = {}
        for request in tuple(state.mirrors.values()):
            attempt = request.running
            assert attempt is not None, f"copy {request.ticket.request_id} is open and has no attempt"
            pool = attempt.endpoint.pool
            if pool not in waited_for:
                waited_for[pool] = self._is_waited_for((pool,))
            if waited_for[pool]:
                reason = f"a request waits for pool {pool}"
                abort(request, attempt, reason, out)
                self._termination.end(request, Outcome.EVICTED, reason, now, out)
