"""Which waiting request is sent next, where, and when is a second attempt made beside a silent one?

A request is bound to an endpoint only when that endpoint has room (late binding). The queue decides whose turn it is,
the router which endpoint takes it; here both are brought together and the attempt is sent.
"""

from headgate.core.attempts import abort
from headgate.core.commands import Command, Dispatch
from headgate.core.events import FirstToken
from headgate.core.routing.least_seconds import Candidate, reservation, why
from headgate.core.routing.reserves import closed_bands
from headgate.core.scheduler_state import SchedulerState
from headgate.core.state import Attempt, Request
from headgate.model.units import Duration, Instant, PoolName


class Dispatcher:
    __slots__ = ("_state",)

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def dispatch(self, now: Instant, out: list[Command]) -> None:
        """Fills every endpoint that has room, looking only at the pools where something changed.

        A place is given to whoever is first at its own pool, so that bands and turns hold at each
        pool by itself. A request that may use several pools goes to the least loaded endpoint
        because the pools are visited in that order.
        """
        fleet, queue = self._state.fleet, self._state.queue
        changed = fleet.changed
        while changed:
            if not queue.backlog.length:
                changed.clear()
            elif (pool := fleet.roomiest()) is not None and not self._give_place(pool, now, out):
                del changed[pool]

    def _give_place(self, pool: PoolName, now: Instant, out: list[Command]) -> bool:
        state = self._state
        fleet, router, backlog = state.fleet, state.router, state.queue.backlog

        def start(request: Request) -> int | None:
            # Operators have ordered that nothing of these classes is sent.
            if request.service_class.name in backlog.apart:
                return None
            chosen = router.choose(request, (pool,), fleet)
            return None if chosen is None else self._start(request, chosen, now, out)

        closed = closed_bands(fleet.pools[pool], state.rules.policy.classes, backlog.of_class)
        return backlog.offer(pool, start, closed)

    def _start(self, request: Request, chosen: Candidate, now: Instant, out: list[Command]) -> int:
        """Sends it; what its tenant is charged."""
        state, ticket, pool = self._state, request.ticket, chosen[0].pool
        state.queue.leave(request, now)
        state.overload.went(request)
        if not request.attempt and not request.fell_back:
            client_retry = ticket.client_retries > 0
            state.retry_budget.first_attempt(ticket.tenant, pool, now, client_retry=client_retry)
        request.running = self._send(request, chosen, now, out)
        if request.attempt < state.rules.policy.retry.attempts_max:
            state.hedging.watch(request, pool, now)
        return request.running.charged

    def _send(
        self, request: Request, chosen: Candidate, now: Instant, out: list[Command], *, hedge: bool = False
    ) -> Attempt:
        state, ticket, service_class = self._state, request.ticket, request.service_class
        endpoint, cached_tokens = chosen
        promised = reservation(request, cached_tokens)
        # The reason counts the request among those in flight; the costs are those that it was chosen by.
        costs = state.router.shares(request, endpoint, cached_tokens)
        attempt = state.attempts.open(request, endpoint, promised, now)
        if ticket.gateway:
            state.fleet.health.sent(endpoint, ticket.gateway, now)
        out.append(
            Dispatch(
                ticket.request_id,
                request.attempt,
                endpoint.id,
                endpoint.pool,
                service_class.name,
                request.waited_ns,
                service_class.first_token_ns_max,
                service_class.idle_ns_max,
                service_class.total_ns_max,
                service_class.caps,
                why(endpoint, promised),
                level=request.level,
                hedge=hedge,
                limits=state.limits.left(ticket.tenant, now),
                model=None if request.model == ticket.model else request.model,
                held_ns=request.held_ns,
                costs=costs,
            )
        )
        return attempt

    # A second attempt while the first is silent

    def hedge_silent(self, now: Instant, out: list[Command]) -> None:
        """Asks a second endpoint for those whose first has been silent for unusually long.

        It goes where there is room after all who wait have been served. Where it cannot be sent
        it is looked at again after as long.
        """
        state = self._state
        for request_id in state.hedging.silent.take():
            request = state.requests.by_id[request_id]
            assert request.running is not None, f"request {request_id} is watched but does not run"
            chosen = self._second_endpoint(request, request.running, now)
            if chosen is None:
                state.hedging.watch(request, request.running.endpoint.pool, now)
            else:
                pool = chosen[0].pool
                state.retry_budget.spend(request.ticket.tenant, pool, now, after_silence=False)
                request.hedge = hedge = self._send(request, chosen, now, out, hedge=True)
                state.queue.backlog.settle(hedge.band, pool, hedge.account, hedge.charged)

    def _second_endpoint(self, request: Request, silent: Attempt, now: Instant) -> Candidate | None:
        """Another endpoint with room than the one that is silent, if nothing is given up there and the budgets agree.

        The request avoids the silent endpoint from here on.
        """
        state = self._state
        if not state.overload.allows_hedging(request.pools):
            return None
        request.avoid = silent.endpoint
        chosen = state.router.choose(request, request.pools, state.fleet)
        if chosen is None or chosen[0] is silent.endpoint:
            return None
        allowed = state.retry_budget.allows(request.ticket.tenant, chosen[0].pool, now, after_silence=False)
        return chosen if allowed else None

    # The first to answer

    def first_token(self, event: FirstToken, now: Instant, out: list[Command]) -> None:
        state, request_id = self._state, event.request_id
        attempt = state.attempts.get(request_id, event.attempt)
        if attempt is None:
            return
        if not event.delivered:
            state.attempts.began_undelivered(attempt, now)
            return
        if (readmitted := state.fleet.health.succeeded(attempt.endpoint, now)) is not None:
            out.append(readmitted)
        state.fleet.health.reach.served(attempt.ticket.gateway, attempt.endpoint)
        request = state.requests.by_id.get(request_id)
        if request is not None and not attempt.let_go and not request.first_token:
            state.hedging.learn(request, attempt.endpoint.pool, Duration(now - attempt.heard_at))
            self.responded_first(request, attempt, now, out)
            state.requests.began(request)
            self.answered_elsewhere(request, now, out)
        state.attempts.began(attempt, now)

    def answered_elsewhere(self, request: Request, now: Instant, out: list[Command]) -> None:
        """Counts earlier failures of the request that were not attributed to their endpoints."""
        blame, fleet = self._state.blame, self._state.fleet
        for failed in request.spent:
            excuse, failed.excuse = failed.excuse, None
            if excuse is None:
                continue
            if blame.is_endpoints_after_all(
                failed.endpoint, failed.ticket, excuse, now, among=fleet.endpoints.values()
            ):
                out += fleet.health.failed_after_all(failed.endpoint, now)
            elif failed.endpoint.service.members.is_unserved(failed.ticket.gateway):
                self.member_failed(failed, now)

    def member_failed(self, attempt: Attempt, now: Instant) -> None:
        """Records that the member holding the request cannot reach an endpoint that serves most other members."""
        state, member = self._state, attempt.ticket.gateway
        if state.fleet.health.member_failed(attempt.endpoint, member, now):
            state.queue.set_apart(member, state.requests.by_id.values())

    def responded_first(self, request: Request, attempt: Attempt, now: Instant, out: list[Command]) -> None:
        """This attempt answers the request; the other one, if there are two, is aborted."""
        if (other := self._state.hedging.spoke(request, attempt, now)) is not None:
            abort(request, other, f"attempt {attempt.number} was the first to answer", out)
