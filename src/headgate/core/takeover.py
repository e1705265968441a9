"""How does a scheduler go on with the work of its predecessor?

It is restored from the predecessor's counters. Then every request that is waiting or running is reported to it, and
goes on as if it had been its own from the start (`adoption`). A request that was let in is not judged again; it ends
only where the present policy has no place for it or its caller's deadline has passed.
"""

from headgate.core.admission.admission import Admission
from headgate.core.admission.gate import Refusal, judge, startable
from headgate.core.adoption import Arrears, running_again, waiting_again
from headgate.core.commands import Command
from headgate.core.counters import Counters
from headgate.core.dispatcher import Dispatcher
from headgate.core.endings import Endings
from headgate.core.events import AttemptReported, RequestReported, RequestSettled
from headgate.core.measure import measure
from headgate.core.memory import Memory
from headgate.core.scheduler_state import SchedulerState
from headgate.core.state import Attempt, Request
from headgate.model.units import Duration, Instant


class Takeover:
    __slots__ = ("_admission", "_dispatcher", "_endings", "_state")

    def __init__(self, state: SchedulerState, admission: Admission, dispatcher: Dispatcher, endings: Endings) -> None:
        self._state = state
        self._admission = admission
        self._dispatcher = dispatcher
        self._endings = endings

    # Counters

    def counters(self, now: Instant) -> Counters:
        """What a successor must know and no one else can tell it."""
        return self._memory().counters(now)

    def restore(self, counters: Counters, now: Instant, *, told_ns_ago: Duration) -> None:
        """Goes on from what a predecessor has counted and learned, before any work is reported."""
        state = self._state
        assert state.rules.hash, "restore() before the policy was told: nothing in the counters has a meaning yet"
        assert not state.requests.by_id, "restore() with requests open: it would count them twice"
        assert not state.attempts.by_number, "restore() with attempts open: it would count them twice"
        self._memory().restore(counters, state.rules.policy, then=Instant(now - told_ns_ago), now=now)

    def _memory(self) -> Memory:
        state = self._state
        learned = (state.limits, state.retry_budget, state.predictions, state.hedging, state.overload)
        return Memory(state.queue, *learned, state.fleet, state.budgets, state.blame)

    def _arrears(self) -> Arrears:
        state = self._state
        backlog, predictions = state.queue.backlog, state.predictions
        return Arrears(state.rules, state.limits, state.retry_budget, backlog, predictions, budgets=state.budgets)

    # Requests that wait or have ended

    def request_settled(self, event: RequestSettled, now: Instant) -> None:
        """Counts a request that has ended under another scheduler."""
        self._arrears().of_settled(event, now)

    def request_reported(self, event: RequestReported, now: Instant, out: list[Command]) -> None:
        """Lets a request wait on that another scheduler let in."""
        state, ticket = self._state, event.ticket
        assert ticket.request_id not in state.requests.by_id, f"request {ticket.request_id} was reported twice"
        verdict = judge(state.rules.without_gone_names(ticket), state.rules)
        if isinstance(verdict, Refusal):
            waited, held = event.waited_ns, event.held_ns
            end = self._admission.refused(ticket, verdict, now, attempts=event.attempts, waited_ns=waited, held_ns=held)
            out.append(end)
            return
        state.requests.sequence += 1
        request = waiting_again(event, verdict, sequence=state.requests.sequence, now=now)
        self._admission.move(request, verdict, now)
        state.requests.add(request)
        if event.failed_at is not None:
            request.avoid = state.fleet.endpoints.get(event.failed_at)
        arrears = self._arrears()
        arrears.of_request(request, event, now)
        arrears.of_retries(request, event.counted, now)
        self._wait_on(request, now, out)

    def _wait_on(self, request: Request, now: Instant, out: list[Command]) -> None:
        """It is queued again, if its time is not over."""
        state = self._state
        if request.deadline is not None and request.deadline.passed(now):
            self._endings.too_late(request, f'while it waited in class "{request.service_class.name}"', now, out)
            return
        if not state.fleet.live(request.pools):
            self._wait_elsewhere(request, now)
        state.overload.stand(request, state.queue.backlog, state.fleet)
        if request.hold is None and not state.queue.patience(request, now):
            self._endings.give_up(request, now, out)
        else:
            state.queue.enter(request, now, out)

    def _wait_elsewhere(self, request: Request, now: Instant) -> None:
        """No endpoint of its pools accepts work: fall back, or hold the request regardless of the limit on held ones.

        An endpoint that has joined may be about to report that it is ready; a request that was not held waits for it.
        """
        state = self._state
        fallback = self._admission.fallback(request, now)
        if fallback is not None:
            state.retry_budget.spend_for_pool(fallback.pools[0], now)
            self._admission.move(request, fallback, now)
        elif request.held_ns or not state.fleet.warming(request.pools):
            request.hold = startable(request.service_class, request.pools, state.fleet, state.rules)
            if request.hold is not None:
                state.queue.holds.expect(request.pools)

    # Attempts that run

    def attempt_reported(self, event: AttemptReported, now: Instant, out: list[Command]) -> None:
        """Books the place of an attempt that another scheduler sent, and goes on with its request."""
        state, ticket = self._state, event.ticket
        assert state.attempts.get(ticket.request_id, event.attempt) is None, f"attempt {event.attempt} was told twice"
        request = state.requests.by_id.get(ticket.request_id)
        if known := request is not None:
            assert request.running is not None, f"request {ticket.request_id} was reported to wait and to run"
        else:
            state.requests.sequence += 1
            request = running_again(event, state.rules, sequence=state.requests.sequence, now=now)
            measure(request, state.predictions, state.fleet, state.rules)
        endpoint = state.fleet.adopt(event.endpoint_id, event.pool, now)
        attempt = state.attempts.adopt(request, endpoint, event, now)
        arrears = self._arrears()
        arrears.of_attempt(request, attempt, event, now)
        if event.let_go:
            return
        if not known:
            arrears.of_request(request, event, now)
        if event.over:
            state.limits.request_ended(ticket.request_id, now, in_flight=True)
        else:
            self._run_on(request, attempt, event, now, out)

    def _run_on(
        self, request: Request, attempt: Attempt, event: AttemptReported, now: Instant, out: list[Command]
    ) -> None:
        """The request runs where this attempt is, or as well where it is."""
        state = self._state
        known, attempts_max = request.running is not None, state.rules.policy.retry.attempts_max
        if not known:
            state.requests.add(request)
            request.running = attempt
        else:
            state.hedging.unwatch(request)
            request.running, request.hedge = (request.running, attempt) if event.hedge else (attempt, request.running)
        if event.first_token and not request.first_token:
            self._dispatcher.responded_first(request, attempt, now, out)
            state.requests.began(request)
        elif request.first_token and (other := request.beside(attempt)) is not None:
            self._dispatcher.responded_first(request, other, now, out)
        if request.deadline is not None and request.deadline.passed(now):
            self._endings.abort_too_late(request, now, out)
        elif not (known or event.hedge or request.first_token or attempt.number >= attempts_max):
            state.hedging.watch(request, attempt.endpoint.pool, Instant(now - event.age_ns))
