"""Dispatcher: sends queued requests to endpoints and hedges silent attempts.

A request is bound to an endpoint only when that endpoint has capacity (late binding). The queue chooses the request and
the router chooses the endpoint. The dispatcher puts the two together and sends the attempt.
"""

from headgate.core.admission.admission import Admission
from headgate.core.admission.gate import overflow_rule
from headgate.core.admission.overflow import (
    check_budget_later,
    is_over_budget,
    overflow_admission,
    overflow_candidate,
    overflow_reason,
)
from headgate.core.attempts import abort
from headgate.core.commands import Command, Dispatch
from headgate.core.queues.queue import decisive_target
from headgate.core.request_state import Attempt, Request
from headgate.core.routing.adapter_turns import NO_OPENINGS
from headgate.core.routing.model_tiers import allowed_pools
from headgate.core.routing.reserved_places import closed_bands
from headgate.core.routing.router import (
    Candidate,
    adapter_reason,
    dispatch_reason,
    reservation,
    reservation_at,
    session_of,
)
from headgate.core.scheduler_state import SchedulerState
from headgate.model.provider_limits import ProviderLimits
from headgate.model.units import Instant, PoolName, RequestId


class Dispatcher:
    __slots__ = ("_admission", "_state")

    def __init__(self, state: SchedulerState, admission: Admission) -> None:
        self._state = state
        self._admission = admission

    def dispatch(self, now: Instant, out: list[Command]) -> None:
        """Sends requests to every endpoint that has capacity. Visits only the pools that changed.

        A free slot goes to the first request in the queue of its own pool, so priority bands and fair shares apply to
        each pool separately, except that pools which share engines have one queue. Pools are visited in order of load,
        so a request that may use several pools goes to the least loaded endpoint. Overflow pools come last.
        """
        fleet, queue = self._state.fleet, self._state.queue
        if (arrival := queue.arrival) is not None:
            queue.arrival = None
            if not self._send_at_once(arrival, now, out):
                queue.enqueue(arrival, now, out)
        changed = fleet.dispatchable
        while changed:
            if not queue.backlog.length:
                changed.clear()
            elif (pool := fleet.least_loaded_pool()) is not None and not self._fill_place(pool, now, out):
                del changed[pool]
                if fleet.engines.groups:
                    for each in fleet.engines.groups.get(pool, ()):
                        changed.pop(each, None)
            if not changed and fleet.adapter_turns.reserved:
                fleet.adapter_turns.release_unused(queue.backlog.waiting_adapters)

    def _send_at_once(self, request: Request, now: Instant, out: list[Command]) -> bool:
        """Sends a request that was admitted to an empty queue, if one of its endpoints has capacity.

        The result is the same as if the request were enqueued first, which takes several times as long. Returns False
        without any effect if the request has to be enqueued. That includes cases in which other rules of the queue
        might apply.
        """
        state, pools = self._state, request.pools
        fleet, backlog, min_shares = state.fleet, state.queue.backlog, state.queue.min_shares
        name = pools[0]
        pool = fleet.pools.get(name)
        if pool is None or not pool.headroom_count or pool.settings.reserves or len(pools) > 1:
            return False
        if (
            backlog.held_classes
            or min_shares.limited_bands
            or fleet.health.reach.avoided
            or name in fleet.engines.groups
        ):
            return False
        band = request.service_class.band
        turns = backlog.fair_queue(band, name)
        chosen = state.router.choose(request, pools, fleet) if turns.is_empty() else None
        if chosen is None:
            return False
        turns.charge_alone(request.account, self._start(request, chosen, now, out))
        if min_shares.enabled:
            min_shares.record_served(name, band, request.cost_ns, ())
        return True

    def send_copy(self, request: Request, chosen: Candidate, now: Instant, out: list[Command]) -> None:
        """Sends a copy of a request, without effects on pressure, hedging and retry budgets."""
        request.running = self._send(request, chosen, now, out)

    def _fill_place(self, pool: PoolName, now: Instant, out: list[Command]) -> bool:
        state = self._state
        fleet, router, backlog = state.fleet, state.router, state.queue.backlog
        group = fleet.engines.groups.get(pool, ())
        turns = fleet.adapter_turns
        openings = turns.openings(group or (pool,), now) if backlog.waiting_adapters else NO_OPENINGS

        def start(request: Request) -> int | None:
            # These classes are held by an operator override.
            if request.service_class.name in backlog.held_classes:
                return None
            # When the overflow timers fire, requests whose deadline has passed have not been ended yet.
            if request.deadline is not None and request.deadline.passed(now):
                return None
            pools = tuple(each for each in request.pools if each in group) if group else (pool,)
            if request.overflow_pools and not group and pool not in request.pools:
                pools = ()
            chosen = router.choose(request, pools, fleet) if pools else None
            if chosen is None:
                charged = self._overflow(request, group or (pool,), now, out) if request.overflow_pools else None
                if charged is None and request.adapter:
                    turns.reserve(request, openings)
                return charged
            backlog.uncount(request)
            state.queue.dequeue(request, now)
            return self._start(request, chosen, now, out)

        if group:
            return backlog.offer_to_group(group, start, openings.is_blocked, self._closed_in_all(group))
        closed: tuple[int, ...] = ()
        if fleet.pools[pool].settings.reserves:
            closed = closed_bands(fleet.pools[pool], state.rules.policy.classes, backlog.waiting_in_class)
        return backlog.offer(pool, start, openings.is_blocked, closed)

    def _overflow(self, request: Request, places: tuple[PoolName, ...], now: Instant, out: list[Command]) -> int | None:
        """Sends a request to one of its overflow pools in `places`, and returns its fairness charge.

        Returns None if none of them has a slot for the request, or its budget does not cover them. The budget is then
        checked again later.
        """
        state, pools = self._state, tuple(each for each in request.overflow_pools if each in places)
        why = overflow_reason(request, now)
        while True:
            chosen = overflow_candidate(request, pools, state) if pools else None
            if chosen is None:
                return None
            endpoint = chosen[0]
            if not is_over_budget(request, endpoint.pool, why, state, now):
                break
            rule = overflow_rule(request, state.rules)
            assert rule is not None, f"request {request.ticket.request_id} has overflow pools, but no overflow rule"
            check_budget_later(request, rule, state, now)
            # The next best pool may be cheaper.
            pools = tuple(each for each in pools if each != endpoint.pool)
        state.queue.backlog.uncount(request)
        state.queue.dequeue(request, now)
        self._admission.assign(request, overflow_admission(request, endpoint.pool, why, state), now)
        # The model and the limits may differ from those with which the endpoint was chosen.
        request.uncached_reservation = None
        cached_tokens = reservation_at(request, endpoint, state.fleet).cached_tokens
        return self._start(request, (endpoint, cached_tokens), now, out)

    def _closed_in_all(self, pools: tuple[PoolName, ...]) -> set[int]:
        """Returns the bands in which no queued request can use a free slot of any of these pools."""
        state, closed = self._state, set[int]()
        waiting = state.queue.backlog.waiting_in_class
        for number, name in enumerate(pools):
            pool = state.fleet.pools.get(name)
            reserves = pool is not None and pool.settings.reserves
            bands = set(closed_bands(pool, state.rules.policy.classes, waiting)) if pool and reserves else set[int]()
            closed = closed & bands if number else bands
        return closed

    def _start(self, request: Request, chosen: Candidate, now: Instant, out: list[Command]) -> int:
        """Sends the request and returns its fairness charge."""
        state, ticket, pool = self._state, request.ticket, chosen[0].pool
        state.overload.record_dispatched(request)
        if not request.attempts_made and not request.fell_back:
            client_retry = ticket.client_retries > 0
            state.retry_budget.first_attempt(ticket.tenant, pool, now, client_retry=client_retry)
        request.running = self._send(request, chosen, now, out)
        if request.service_class.hedging and request.attempts_made < state.rules.policy.retry.attempts_max:
            state.hedging.watch(request, pool, now)
        return request.running.charged

    def _send(
        self, request: Request, chosen: Candidate, now: Instant, out: list[Command], *, hedge: bool = False
    ) -> Attempt:
        state, ticket, service_class = self._state, request.ticket, request.service_class
        endpoint, cached_tokens = chosen
        promised = request.uncached_reservation
        if cached_tokens or promised is None:
            promised = reservation(request, cached_tokens)
        # Compute the costs before the attempt opens: the reason counts the request as in flight, but the costs do not.
        costs = state.router.cost_breakdown(request, endpoint, cached_tokens)
        adapter = request.adapter
        further = adapter_reason(endpoint, adapter) if adapter else ""
        if request.e2e_ns is not None:
            further += f"; decisive: {decisive_target(request)}"
        if endpoint.quota is not None:
            endpoint.quota.spend(promised.kv_tokens)
            endpoint.quota_exhausted = endpoint.quota.exhausted
        attempt = state.attempts.open(request, endpoint, promised, now)
        if ticket.gateway:
            state.fleet.health.record_sent(endpoint, ticket.gateway, now)
        if ticket.session:
            state.fleet.pools[endpoint.pool].sessions.record(session_of(request), endpoint.id, request.prompt_tokens)
        out.append(
            Dispatch(
                ticket.request_id,
                request.attempts_made,
                endpoint.id,
                endpoint.pool,
                service_class.name,
                request.waited_ns,
                service_class.first_token_ns_max,
                service_class.idle_ns_max,
                service_class.total_ns_max,
                service_class.caps,
                dispatch_reason(endpoint, promised) + further + request.overflow_note,
                # By position, because keywords take longer: the level, the flag, the limits, the model, the hold time,
                # the costs, the adapter, the route.
                request.level,
                hedge,
                state.limits.left(ticket.tenant, now) if state.limits.paths else None,
                None if request.model == ticket.model else request.model,
                request.held_ns,
                costs,
                adapter,
                request.route,
            )
        )
        return attempt

    # Hedging

    def hedge_silent(self, now: Instant, out: list[Command]) -> None:
        """Sends a second attempt for requests whose first attempt has been silent for an unusually long time.

        Hedges use only capacity that no queued request needs. A hedge that cannot be sent is tried again after the same
        interval.
        """
        state = self._state
        for request_id in state.hedging.silence_timers.pop_fired():
            request = state.requests.by_id[request_id]
            assert request.running is not None, f"request {request_id} has a hedge timer but no running attempt"
            chosen = self._second_endpoint(request, request.running, now)
            if chosen is None:
                state.hedging.watch(request, request.running.endpoint.pool, now)
            else:
                pool = chosen[0].pool
                state.retry_budget.spend(request.ticket.tenant, pool, now, after_silence=False)
                request.hedge = hedge = self._send(request, chosen, now, out, hedge=True)
                state.queue.backlog.settle(hedge.band, pool, hedge.account, hedge.charged)

    def _second_endpoint(self, request: Request, silent: Attempt, now: Instant) -> Candidate | None:
        """Returns another endpoint with capacity, if the pool is not degraded and the retry budgets allow a hedge.

        From now on, the request avoids the silent endpoint.
        """
        state = self._state
        if not state.overload.allows_hedging(request.pools):
            return None
        request.avoid = silent.endpoint
        pools = request.pools
        if state.rules.hosted_pools:
            # The policy may have changed since the first attempt was sent.
            pools = allowed_pools(pools, state.rules.class_for(request.service_class, request.ticket.tenant))
        chosen = state.router.choose(request, pools, state.fleet)
        if chosen is None or chosen[0] is silent.endpoint:
            return None
        allowed = state.retry_budget.allows(request.ticket.tenant, chosen[0].pool, now, after_silence=False)
        return chosen if allowed else None

    # First token

    def first_token(
        self,
        request_id: RequestId,
        number: int,
        now: Instant,
        out: list[Command],
        *,
        delivered: bool,
        limits: ProviderLimits | None = None,
    ) -> None:
        state = self._state
        attempt = state.attempts.get(request_id, number)
        if attempt is None:
            return
        if limits is not None:
            state.fleet.quotas.record(attempt.endpoint, limits, now)
        if not delivered:
            state.attempts.record_undelivered_first_token(attempt, now)
            return
        health = state.fleet.health
        if (readmitted := health.record_success(attempt.endpoint, now)) is not None:
            out.append(readmitted)
        if health.reach.failing:
            health.reach.record_served(attempt.ticket.gateway, attempt.endpoint)
        request = state.requests.by_id.get(request_id)
        if request is not None and not attempt.superseded and not request.first_token:
            if request.service_class.hedging:
                state.hedging.learn(request, attempt, now)
                state.hedging.unwatch(request)
            if request.hedge is not None or request.running is not attempt:
                self.responded_first(request, attempt, now, out)
            state.requests.record_first_token(request)
            if request.attempts_made > 1:
                self.reattribute_failures(request, now, out)
        state.attempts.record_first_token(attempt, now)

    def reattribute_failures(self, request: Request, now: Instant, out: list[Command]) -> None:
        """Attributes the request's earlier failures to their endpoints, now that another endpoint has served it."""
        blame, fleet = self._state.blame, self._state.fleet
        for failed in request.finished_attempts:
            excuse, failed.other_origin = failed.other_origin, None
            if excuse is None:
                continue
            if blame.is_endpoint_fault(failed.endpoint, failed.ticket, excuse, now, endpoints=fleet.endpoints.values()):
                out += fleet.health.record_reattributed_failure(failed.endpoint, now)
            elif failed.endpoint.service_log.members.is_unserved(failed.ticket.gateway):
                self.record_member_failure(failed, now)

    def record_member_failure(self, attempt: Attempt, now: Instant) -> None:
        """Records that the request's member cannot reach an endpoint that serves most other members."""
        state, member = self._state, attempt.ticket.gateway
        if state.fleet.health.record_member_failure(attempt.endpoint, member, now):
            state.queue.isolate_member(member, state.requests.by_id.values())

    def responded_first(self, request: Request, attempt: Attempt, now: Instant, out: list[Command]) -> None:
        """Keeps this attempt and aborts the other one, if any."""
        if (other := self._state.hedging.responded_first(request, attempt, now)) is not None:
            abort(request, other, f"attempt {attempt.number} responded first", out)
