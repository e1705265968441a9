"""May this request come in, and what does it take from its tenant when it does?

Checks and effects are apart. `assess` asks every check in the order of `gate` and spends nothing; `commit` then spends
limits, budgets and retry credit, once. The checks may fill caches that change no answer. A unit of business counts as
having spoken when its cost is looked up, and an empty window or route is made when it is first asked for.

A request that falls back to another model's pool, and is refused there for another reason, counts as an extra attempt
at that pool all the same. The budget of extra attempts bounds how many fall back at once, those refused included.
"""

from typing import NamedTuple

from headgate.core.admission.feasibility import unreachable
from headgate.core.admission.gate import (
    Admitted,
    Refusal,
    duplicate,
    instead,
    judge,
    late,
    no_hold,
    no_place,
    no_retry,
    over_budget,
    over_limit,
    quarantined,
    servable,
    startable,
)
from headgate.core.admission.retry_after import bounded
from headgate.core.commands import Command, End
from headgate.core.measure import measure
from headgate.core.scheduler_state import SchedulerState
from headgate.core.state import Request
from headgate.model.outcome import Outcome
from headgate.model.ticket import Ticket
from headgate.model.units import Duration, Instant, PoolName

_LOST = (Outcome.QUEUE_FULL, Outcome.UNREACHABLE)
"""The refusals of requests that could not be served in time."""


class Assessment(NamedTuple):
    """The result of all checks of one ticket; nothing has been spent yet."""

    ticket: Ticket
    request: Request | None
    """None if the policy alone refuses it."""
    refusal: Refusal | None
    """None if it may come in."""
    fallback: PoolName | None = None
    """The pool of another model that it falls back to."""


class Admission:
    __slots__ = ("_state",)

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def arrive(self, ticket: Ticket, now: Instant, out: list[Command]) -> None:
        known = self._state.requests.by_id
        assert ticket.request_id not in known, f"request {ticket.request_id} arrived twice"
        self.commit(self.assess(ticket, now), now, out)

    # Checks

    def assess(self, ticket: Ticket, now: Instant) -> Assessment:
        state = self._state
        verdict = judge(ticket, state.rules)
        if isinstance(verdict, Refusal):
            return Assessment(ticket, None, verdict)
        sequence = state.requests.sequence + 1
        request = Request(ticket, verdict.service_class, verdict.pools, sequence=sequence, now=now)
        self.move(request, verdict, now)
        refusal = late(request, now) or duplicate(state.requests.first_of_key(ticket), request)
        refusal = refusal or quarantined(request, state.blame.quarantined(ticket, now))
        if refusal is not None or state.fleet.live(request.pools):
            return Assessment(ticket, request, refusal or self._refusal(request, now))
        fallback = self.fallback(request, now)
        if fallback is None:
            return Assessment(ticket, request, self._unserved(request, now) or self._refusal(request, now))
        self.move(request, fallback, now)
        return Assessment(ticket, request, self._refusal(request, now), fallback.pools[0])

    def fallback(self, request: Request, now: Instant) -> Admitted | None:
        """The pools of another model that may serve it instead of its own, inside their budget of extra attempts."""
        state = self._state
        declared = state.rules.classes[request.service_class.name]
        other = instead(request.ticket, declared, state.fleet, state.rules)
        return other if other is not None and state.retry_budget.allows_for_pool(other.pools[0], now) else None

    def _unserved(self, request: Request, now: Instant) -> Refusal | None:
        """Whether no endpoint can serve it. It may be that it is to be held until one of its own pools can."""
        state = self._state
        fleet, rules, queue = state.fleet, state.rules, state.queue
        if (pool := startable(request.service_class, request.pools, fleet, rules)) is None:
            return servable(request.service_class, request.pools, fleet, rules, holds=queue.holds, now=now)
        refusal = no_hold(request, pool, queue.backlog, fleet, rules, holds=queue.holds, now=now)
        if refusal is None:
            request.hold = pool
        return refusal

    def _refusal(self, request: Request, now: Instant) -> Refusal | None:
        """Why a request that the policy allows, and that can be served, does not come in at this moment."""
        state = self._state
        backlog = state.queue.backlog
        return (
            over_limit(request, state.limits, now)
            or state.overload.refusal(request, backlog, state.fleet, state.retry_budget, now)
            or (self._no_time_or_place(request, now) if request.hold is None else None)
            or over_budget(request, state.budgets, now)
            or no_retry(request, backlog, state.retry_budget, now)
        )

    def _no_time_or_place(self, request: Request, now: Instant) -> Refusal | None:
        state = self._state
        fleet, queue = state.fleet, state.queue
        full = no_place(request, fleet, queue.backlog, state.retry_budget, now, router=state.router)
        patience = queue.patience(request, now)
        return full or unreachable(request, patience, queue.backlog, fleet, state.rules, now=now)

    # Effects

    def commit(self, assessed: Assessment, now: Instant, out: list[Command]) -> None:
        """Lets a request in that passed all checks, or refuses it. This alone spends anything."""
        ticket, request, refusal, fallback = assessed
        state = self._state
        if request is not None:
            state.requests.sequence += 1
            if request.shed_rank is not None:
                state.overload.note_arrival(request, request.shed_rank)
            if fallback is not None:
                state.retry_budget.spend_for_pool(fallback, now)
        if refusal is not None:
            if request is not None and refusal.outcome in _LOST:
                state.overload.lost(request)
            out.append(self.refused(ticket, refusal, now))
            return
        assert request is not None, "a ticket is refused or made a request"
        state.requests.add(request)
        if ticket.client_retries:
            state.retry_budget.spend_for_tenant(ticket.tenant)
        state.limits.take(ticket, request.prompt_tokens, request.output_tokens, now)
        state.budgets.reserve(request)
        state.queue.enter(request, now, out)

    def refused(
        self,
        ticket: Ticket,
        why: Refusal,
        now: Instant,
        *,
        attempts: int = 0,
        waited_ns: Duration = Duration(0),
        held_ns: Duration = Duration(0),
    ) -> End:
        name = why.service_class.name if why.service_class else None
        wait, left = bounded(why.retry_after_ns, why.outcome), self._state.limits.left(ticket.tenant, now)
        return End(ticket.request_id, why.outcome, name, attempts, waited_ns, wait, why.reason, left, held_ns)

    def move(self, request: Request, admitted: Admitted, now: Instant) -> None:
        """Gives it this class and these pools, less what the ladder takes from it there.

        What it has reserved of budgets, if it has come in already, moves with it.
        """
        state = self._state
        fleet, budgets, predictions, rules = state.fleet, state.budgets, state.predictions, state.rules
        request.service_class, request.pools, request.model = admitted.service_class, admitted.pools, admitted.model
        request.fell_back = admitted.model != request.ticket.model
        measure(request, predictions, fleet, rules)
        state.overload.degrade(request, fleet, level_min=budgets.level(request))
        if request.level:
            measure(request, predictions, fleet, rules)
        if budgets.economise(request, fleet, now):
            measure(request, predictions, fleet, rules)
        request.kind = (request.pools, request.service_class.band, request.long)
        budgets.move(request, now)
