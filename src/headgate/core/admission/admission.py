"""Admission of arriving requests.

Checks and effects are separate. `assess` runs all checks in the order of `gate` and spends nothing. `commit` then
spends limits, budgets and retry credit once. Checks may fill caches that do not affect results: looking up the cost of
a business unit marks the unit as recently used, and empty windows and routes are created on first use.

A request that falls back to another model's pool counts as an extra attempt in that pool, even if a later check rejects
the request. The budget for extra attempts therefore limits all fallbacks, including rejected ones.
"""

from headgate.core.admission.assignment import assign
from headgate.core.admission.feasibility import deadline_infeasible_rejection
from headgate.core.admission.gate import (
    Admitted,
    Rejection,
    budget_rejection,
    check_policy,
    deadline_exceeded_rejection,
    duplicate_rejection,
    exhausted_beyond,
    fallback_for,
    hold_pool,
    hold_rejection,
    limit_rejection,
    missing_adapter_rejection,
    no_endpoint_rejection,
    quarantine_rejection,
    queue_full_rejection,
    retry_rejection,
)
from headgate.core.admission.overflow import overflow_on_arrival
from headgate.core.admission.retry_after import clamp_retry_after
from headgate.core.commands import Command, End
from headgate.core.request_state import Request
from headgate.core.scheduler_state import SchedulerState
from headgate.model.outcome import Outcome
from headgate.model.ticket import Ticket
from headgate.model.units import Duration, Instant, PoolName, after

_LOST_OUTCOMES = (Outcome.QUEUE_FULL, Outcome.DEADLINE_INFEASIBLE)
"""Outcomes of requests that were rejected because they could not be served in time."""


class Assessment:
    """Result of all checks for one ticket, before anything is spent."""

    # A named tuple takes longer to create.
    __slots__ = ("fallback", "rejection", "request", "ticket")

    def __init__(
        self, ticket: Ticket, request: Request | None, rejection: Rejection | None, fallback: PoolName | None = None
    ) -> None:
        self.ticket = ticket
        self.request = request
        """Request built from the ticket. None if the policy rejects the ticket."""
        self.rejection = rejection
        """Reason for the rejection. None if the request is admitted."""
        self.fallback = fallback
        """Pool of another model that serves the request as a fallback."""


class Admission:
    __slots__ = ("_state",)

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def admit(self, ticket: Ticket, now: Instant, out: list[Command]) -> None:
        known = self._state.requests.by_id
        assert ticket.request_id not in known, f"request {ticket.request_id} arrived twice"
        self.commit(self.assess(ticket, now), now, out)

    # Checks

    def assess(self, ticket: Ticket, now: Instant) -> Assessment:
        state = self._state
        verdict = check_policy(ticket, state.rules)
        if isinstance(verdict, Rejection):
            return Assessment(ticket, None, verdict)
        sequence = state.requests.sequence + 1
        request = Request(ticket, verdict.service_class, verdict.pools, sequence, now)
        self.assign(request, verdict, now)
        refusal = None if request.deadline is None else deadline_exceeded_rejection(request, now)
        if refusal is None and ticket.idempotency_key is not None:
            refusal = duplicate_rejection(state.requests.open_with_key(ticket), request)
        if refusal is None and (quarantine_ns := state.blame.quarantine_ns_left(ticket, now)) is not None:
            refusal = quarantine_rejection(request, quarantine_ns)
        if refusal is not None:
            return Assessment(ticket, request, refusal)
        if state.rules.overflow_pools and overflow_on_arrival(request, verdict.service_class, state, now):
            state.overload.set_sheddability(request, state.queue.backlog, state.fleet)
            return Assessment(ticket, request, self._rejection(request, now, overflows=True))
        until = self._exhausted_until(request, now) if state.rules.hosted_pools else None
        if until is None and state.fleet.live_count(request.pools):
            refusal = missing_adapter_rejection(request, state.fleet) if request.adapter else None
            return Assessment(ticket, request, refusal or self._rejection(request, now))
        fallback = self.fallback(request, now)
        if fallback is None:
            refusal = self._no_endpoint_rejection(request, now, until) or self._rejection(request, now)
            return Assessment(ticket, request, refusal)
        self.assign(request, fallback, now)
        return Assessment(ticket, request, self._rejection(request, now), fallback.pools[0])

    def fallback(self, request: Request, now: Instant) -> Admitted | None:
        """Returns a fallback model's pools that can serve the request, if their budget for extra attempts allows it."""
        state = self._state
        declared = state.rules.classes[request.service_class.name]
        if state.rules.hosted_pools:
            declared = state.rules.class_for(declared, request.ticket.tenant)
        last = after(now, state.queue.wait_ns_left(request, now))
        other = fallback_for(request.ticket, declared, state.fleet, state.rules, last)
        return other if other is not None and state.retry_budget.allows_for_pool(other.pools[0], now) else None

    def _exhausted_until(self, request: Request, now: Instant) -> Instant | None:
        """Returns when the rate limits of the request's pools end, if the request may not wait for so long."""
        state = self._state
        last = after(now, state.queue.wait_ns_left(request, now))
        return exhausted_beyond(request.pools, state.fleet, state.rules, last)

    def _no_endpoint_rejection(
        self, request: Request, now: Instant, exhausted_until: Instant | None
    ) -> Rejection | None:
        """Returns a rejection if no endpoint can serve the request.

        A request that may wait for the first endpoint of one of its pools is marked as held.
        """
        state = self._state
        fleet, rules, queue = state.fleet, state.rules, state.queue
        if (pool := hold_pool(request.service_class, request.pools, fleet, rules)) is None:
            return no_endpoint_rejection(
                request.service_class,
                request.pools,
                fleet,
                rules,
                holds=queue.holds,
                now=now,
                exhausted_until=exhausted_until,
            )
        refusal = hold_rejection(request, pool, queue.backlog, fleet, rules, holds=queue.holds, now=now)
        if refusal is None:
            request.held_for = pool
        return refusal

    def _rejection(self, request: Request, now: Instant, *, overflows: bool = False) -> Rejection | None:
        """Returns the rejection for a request that the policy allows and its pools can serve, or None.

        If it overflows, an overflow pool has a slot for it, so that the load of its own pools does not matter.
        """
        state = self._state
        backlog = state.queue.backlog
        # Checks without anything to check are not called.
        return (
            (limit_rejection(request, state.limits, now) if state.limits.paths else None)
            or (None if overflows else state.overload.rejection(request, backlog, state.fleet, state.retry_budget, now))
            or (self._queue_rejection(request, now) if request.held_for is None and not overflows else None)
            or (budget_rejection(request, state.budgets, now) if state.budgets.enabled else None)
            or (retry_rejection(request, backlog, state.retry_budget, now) if request.ticket.client_retries else None)
        )

    def _queue_rejection(self, request: Request, now: Instant) -> Rejection | None:
        state = self._state
        fleet, queue = state.fleet, state.queue
        full = queue_full_rejection(request, fleet, queue.backlog, state.retry_budget, now, router=state.router)
        if full is not None or (not queue.backlog.length and fleet.has_places(request.pools)):
            # Without queued requests, a request waits at most for a free slot.
            return full
        patience = queue.wait_ns_left(request, now)
        return deadline_infeasible_rejection(request, patience, queue.backlog, fleet, state.rules, now=now)

    # Effects

    def commit(self, assessed: Assessment, now: Instant, out: list[Command]) -> None:
        """Admits a request that passed all checks, or rejects it. Only this method spends limits and budgets."""
        ticket, request, refusal = assessed.ticket, assessed.request, assessed.rejection
        state = self._state
        if request is not None:
            state.requests.sequence += 1
            if request.shed_rank is not None:
                state.overload.record_arrival(request, request.shed_rank)
            if assessed.fallback is not None:
                state.retry_budget.spend_for_pool(assessed.fallback, now)
        if refusal is not None:
            if request is not None and refusal.outcome in _LOST_OUTCOMES:
                state.overload.record_lost(request)
            out.append(self.rejected_end(ticket, refusal, now))
            return
        assert request is not None, "a ticket without a rejection has a request"
        state.requests.add(request)
        if ticket.client_retries:
            state.retry_budget.spend_for_tenant(ticket.tenant)
        if state.limits.paths:
            state.limits.reserve(ticket, request.prompt_tokens, request.output_tokens, now)
        if state.budgets.enabled:
            state.budgets.reserve(request)
        state.queue.admit(request, now, out)

    def rejected_end(
        self,
        ticket: Ticket,
        rejection: Rejection,
        now: Instant,
        *,
        attempts: int = 0,
        waited_ns: Duration = Duration(0),
        held_ns: Duration = Duration(0),
    ) -> End:
        name = rejection.service_class.name if rejection.service_class else None
        wait, left = (
            clamp_retry_after(rejection.retry_after_ns, rejection.outcome),
            self._state.limits.left(ticket.tenant, now),
        )
        return End(
            ticket.request_id, rejection.outcome, name, attempts, waited_ns, wait, rejection.reason, left, held_ns
        )

    def assign(self, request: Request, admitted: Admitted, now: Instant) -> None:
        """Assigns a class and pools to the request and applies the current degradation level.

        If the request is already admitted, its budget reservation moves with it.
        """
        assign(request, admitted, self._state, now)
        if self._state.budgets.claims:
            self._state.budgets.update_reservation(request, now)
