"""Takes over the work of an earlier scheduler.

The scheduler is restored from the earlier scheduler's snapshot. All queued and running requests are then reported to it
and continue (`adoption`). An admitted request is not checked again. It ends only if the current policy cannot serve it
or its deadline has passed.
"""

from headgate.core.admission.admission import Admission
from headgate.core.admission.gate import Admitted, Rejection, check_policy, hold_pool
from headgate.core.adoption import CounterBackfill, adopt_queued, adopt_running
from headgate.core.commands import Command
from headgate.core.counters import Counters
from headgate.core.dispatcher import Dispatcher
from headgate.core.estimate import estimate
from headgate.core.events import AttemptReported, RequestReported, RequestSettled
from headgate.core.request_state import Attempt, Request
from headgate.core.scheduler_state import SchedulerState
from headgate.core.snapshot import Snapshotter
from headgate.core.termination import Termination
from headgate.model.outcome import Outcome
from headgate.model.units import Duration, Instant


class Takeover:
    __slots__ = ("_admission", "_dispatcher", "_state", "_termination")

    def __init__(
        self, state: SchedulerState, admission: Admission, dispatcher: Dispatcher, endings: Termination
    ) -> None:
        self._state = state
        self._admission = admission
        self._dispatcher = dispatcher
        self._termination = endings

    # Snapshot

    def counters(self, now: Instant) -> Counters:
        """Returns the snapshot for the next scheduler."""
        return self._snapshotter().counters(now)

    def restore(self, counters: Counters, now: Instant, *, snapshot_age_ns: Duration) -> None:
        """Restores the snapshot of an earlier scheduler. Call it before any work is reported."""
        state = self._state
        assert state.rules.hash, "restore() called before a policy was set; the snapshot has no meaning without one"
        assert not state.requests.by_id, "restore() called with open requests; they would be counted twice"
        assert not state.attempts.by_number, "restore() called with open attempts; they would be counted twice"
        self._snapshotter().restore(counters, state.rules.policy, taken_at=Instant(now - snapshot_age_ns), now=now)

    def _snapshotter(self) -> Snapshotter:
        state = self._state
        learned = (state.limits, state.retry_budget, state.predictions, state.hedging, state.overload)
        return Snapshotter(state.queue, *learned, state.fleet, state.budgets, state.blame)

    def _backfill(self) -> CounterBackfill:
        state = self._state
        backlog, predictions = state.queue.backlog, state.predictions
        return CounterBackfill(
            state.rules, state.limits, state.retry_budget, backlog, predictions, budgets=state.budgets
        )

    # Queued and ended requests

    def request_settled(self, event: RequestSettled, now: Instant) -> None:
        """Counts a request that ended under another scheduler."""
        self._backfill().add_settled(event, now)

    def request_reported(self, event: RequestReported, now: Instant, out: list[Command]) -> None:
        """Queues a request that another scheduler admitted."""
        state, ticket = self._state, event.ticket
        assert ticket.request_id not in state.requests.by_id, f"request {ticket.request_id} was reported twice"
        verdict: Admitted | Rejection
        if ticket.mirror_route:
            # Copies are sent at once or not at all.
            verdict = Rejection(Outcome.SHED, "another scheduler took over before the copy was sent")
        else:
            verdict = check_policy(state.rules.without_unknown_names(ticket), state.rules, event.route)
        if isinstance(verdict, Rejection):
            waited, held = event.waited_ns, event.held_ns
            end = self._admission.rejected_end(
                ticket, verdict, now, attempts=event.attempts, waited_ns=waited, held_ns=held
            )
            out.append(end)
            return
        state.requests.sequence += 1
        request = adopt_queued(event, verdict, sequence=state.requests.sequence, now=now)
        self._admission.assign(request, verdict, now)
        state.requests.add(request)
        if event.failed_at is not None:
            request.avoid = state.fleet.endpoints.get(event.failed_at)
        arrears = self._backfill()
        arrears.add_request(request, event, now)
        arrears.add_retries(request, event.counted, now)
        self._resume_waiting(request, now, out)

    def _resume_waiting(self, request: Request, now: Instant, out: list[Command]) -> None:
        """Queues the request again, unless it has reached its maximum wait or its deadline."""
        state = self._state
        if request.deadline is not None and request.deadline.passed(now):
            self._termination.end_deadline_exceeded(
                request, f'while the request waited in class "{request.service_class.name}"', now, out
            )
            return
        if not state.fleet.live_count(request.pools):
            self._fall_back_or_hold(request, now)
        state.overload.set_sheddability(request, state.queue.backlog, state.fleet)
        if request.held_for is None and not state.queue.wait_ns_left(request, now):
            self._termination.end_queue_timeout(request, now, out)
        else:
            state.queue.enqueue(request, now, out)

    def _fall_back_or_hold(self, request: Request, now: Instant) -> None:
        """Falls back or puts the request on hold because no endpoint of its pools accepts requests.

        The limit on held requests does not apply. An endpoint that has joined may be about to become ready, so a
        request that was not on hold waits for it.
        """
        state = self._state
        fallback = self._admission.fallback(request, now)
        if fallback is not None:
            state.retry_budget.spend_for_pool(fallback.pools[0], now)
            self._admission.assign(request, fallback, now)
        elif request.held_ns or not state.fleet.is_warming(request.pools):
            request.held_for = hold_pool(request.service_class, request.pools, state.fleet, state.rules)
            if request.held_for is not None:
                state.queue.holds.expect(request.pools)

    # Running attempts

    def attempt_reported(self, event: AttemptReported, now: Instant, out: list[Command]) -> None:
        """Occupies the slot of an attempt that another scheduler sent, and continues its request."""
        state, ticket = self._state, event.ticket
        assert state.attempts.get(ticket.request_id, event.attempt) is None, (
            f"attempt {event.attempt} was reported twice"
        )
        request = state.requests.by_id.get(ticket.request_id)
        if known := request is not None:
            assert request.running is not None, (
                f"request {ticket.request_id} was reported both as queued and as running"
            )
        else:
            state.requests.sequence += 1
            request = adopt_running(event, state.rules, sequence=state.requests.sequence, now=now)
            estimate(request, state.predictions, state.fleet, state.rules)
        endpoint = state.fleet.adopt(event.endpoint_id, event.pool, now)
        attempt = state.attempts.adopt(request, endpoint, event, now)
        arrears = self._backfill()
        arrears.add_attempt(request, attempt, event, now)
        if event.superseded:
            return
        if not known:
            arrears.add_request(request, event, now)
        if event.request_ended:
            state.limits.request_ended(ticket.request_id, now, in_flight=True)
        else:
            self._resume_running(request, attempt, event, now, out)

    def _resume_running(
        self, request: Request, attempt: Attempt, event: AttemptReported, now: Instant, out: list[Command]
    ) -> None:
        """Continues the request with this attempt, in addition to another running attempt if there is one."""
        state = self._state
        known, attempts_max = request.running is not None, state.rules.policy.retry.attempts_max
        if not known:
            state.requests.add(request)
            request.running = attempt
            if event.ticket.mirror_route:
                state.mirrors[event.ticket.request_id] = request
        else:
            state.hedging.unwatch(request)
            request.running, request.hedge = (request.running, attempt) if event.hedge else (attempt, request.running)
        if event.first_token and not request.first_token:
            self._dispatcher.responded_first(request, attempt, now, out)
            state.requests.record_first_token(request)
        elif request.first_token and (other := request.other_attempt(attempt)) is not None:
            self._dispatcher.responded_first(request, other, now, out)
        if request.deadline is not None and request.deadline.passed(now):
            self._termination.abort_past_deadline(request, now, out)
        elif not (known or event.hedge or request.first_token or attempt.number >= attempts_max):
            state.hedging.watch(request, attempt.endpoint.pool, Instant(now - event.age_ns))
