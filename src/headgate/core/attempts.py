"""Attempts in flight on the endpoints, and what they are charged.

An attempt keeps its slot and its reservation from `Dispatch` to `AttemptEnded`, even if its request ends earlier. The
tenant is charged the predicted cost when the attempt is sent, more if the response turns out to be much longer, and the
actual cost when the attempt ends. Predictions are learned from the actual usage. Fair queueing uses these charges.
`engine_time` measures each attempt's share of endpoint time separately.
"""

from collections.abc import Sequence
from typing import Final

from headgate.core.commands import Abort, Command
from headgate.core.cost import cost_ns
from headgate.core.engine_time import decode_step_ps, prefill_step_ps
from headgate.core.events import AttemptEnded, AttemptEnding, AttemptReported, AttemptsProgressed, CountedUpTo
from headgate.core.prediction import Predictions
from headgate.core.queues import fair_queue
from headgate.core.queues.backlog import Backlog
from headgate.core.request_state import TRUE_UP_TOKENS, Attempt, Request
from headgate.core.routing.endpoints import EndpointRecord, Reservation
from headgate.core.routing.fleet import FleetState
from headgate.core.routing.occupancy import EndpointProgress
from headgate.core.routing.router import reservation_at
from headgate.core.rules import Rules
from headgate.core.timers import TimerHeap, Timers
from headgate.model.ticket import APIS_WITHOUT_OUTPUT
from headgate.model.units import Instant, RequestId, after
from headgate.model.usage import UsageSource

_PS_PER_NS: Final = 1_000
# Enum members that every request needs: Python 3.11 looks them up slowly.
_COMPLETED: Final = AttemptEnding.COMPLETED
_ENGINE: Final = UsageSource.ENGINE
_SHORT_SHARE: Final = 16
"""Divisor of the prefill chunk size.

Prompts no larger than this fraction of a chunk do not delay other requests and need no timer.
"""


class Attempts:
    """All attempts that occupy a slot on an endpoint."""

    __slots__ = (
        "_backlog",
        "_fleet",
        "_occupancy",
        "_predictions",
        "_rules",
        "_unstreamed",
        "by_number",
        "prefill_timers",
    )

    def __init__(
        self, rules: Rules, fleet: FleetState, backlog: Backlog, predictions: Predictions, timer_heap: TimerHeap
    ) -> None:
        self._rules = rules
        self._fleet = fleet
        self._occupancy = fleet.occupancy
        self._backlog = backlog
        self._predictions = predictions
        self.by_number: dict[tuple[RequestId, int], Attempt] = {}
        self.prefill_timers: Timers[RequestId] = Timers(timer_heap)
        """Timers for when the prefill of each non-streaming request is expected to end."""
        self._unstreamed: dict[RequestId, Attempt] = {}
        """Latest attempt of each non-streaming request with a prefill timer."""

    def __len__(self) -> int:
        return len(self.by_number)

    def change_rules(self, rules: Rules, backlog: Backlog) -> None:
        self._rules, self._backlog = rules, backlog

    def get(self, request_id: RequestId, number: int) -> Attempt | None:
        return self.by_number.get((request_id, number))

    def open(self, request: Request, endpoint: EndpointRecord, reservation: Reservation, now: Instant) -> Attempt:
        """Occupies a slot for the request and charges its tenant."""
        ticket = request.ticket
        request.attempts_made += 1
        attempt = Attempt(request, endpoint, request.attempts_made, reservation, now)
        cached_tokens = reservation.cached_tokens
        if request.speed is endpoint.settings.speed and cached_tokens == request.cached_tokens:
            # The cost that was predicted for the pool is also the cost on this endpoint.
            attempt.charged = fair_queue.charge(request.cost_ns, self._rules.weight(request.account))
        else:
            attempt.charged = self._charge_for(attempt, reservation.prompt_tokens, request.output_tokens, cached_tokens)
        self.by_number[ticket.request_id, request.attempts_made] = attempt
        if request.adapter:
            self._fleet.adapter_turns.begin(endpoint, request.adapter, now)
        turnover = self._fleet.pools[endpoint.pool].turnover
        turnover.occupy(attempt, now, request.cost_ns, reservation.places, ticket.tenant)
        if not ticket.stream and _is_short(attempt):
            # Nothing reports the end of the prefill, so the prompt counts as prefilled immediately.
            attempt.prefilled = True
            adds_ps, places = _decode_step_ps(attempt), reservation.places
            attempt.engine_time = endpoint.engine_time.begin_at_decode(adds_ps, now, places)
            self._occupancy.occupy_prefilled(endpoint, reservation, request.hashes)
            return attempt
        self._start_metering(attempt, now)
        self._occupancy.occupy(endpoint, reservation, request.hashes)
        if not ticket.stream:
            self._watch_prefill(attempt, now)
        return attempt

    def _start_metering(self, attempt: Attempt, now: Instant) -> None:
        """Starts measuring the attempt's share of endpoint time."""
        promised, endpoint, ticket = attempt.reservation, attempt.endpoint, attempt.ticket
        speed, prompts = endpoint.settings.speed, ticket.prompts
        adds_ps = prefill_step_ps(speed, promised.prompt_tokens, promised.cached_tokens, prompts)
        attempt.engine_time = endpoint.engine_time.begin(adds_ps, now, promised.places)

    def _watch_prefill(self, attempt: Attempt, now: Instant) -> None:
        """Sets the prefill timer of a non-streaming request. A prompt that takes no time is prefilled immediately."""
        computed_at = _prefill_done_at(attempt, now)
        if computed_at <= now:
            self._mark_prefilled(attempt, now)
        else:
            self._await_prefill(attempt, computed_at)

    def _await_prefill(self, attempt: Attempt, computed_at: Instant) -> None:
        self._unstreamed[attempt.ticket.request_id] = attempt
        self.prefill_timers.set(attempt.ticket.request_id, computed_at)

    def adopt(self, request: Request, endpoint: EndpointRecord, report: AttemptReported, now: Instant) -> Attempt:
        """Occupies the slot of an attempt that another scheduler sent.

        The tenant's charge is not added here: the snapshot includes it, or `CounterBackfill` adds it.
        """
        ticket, sent = report.ticket, Instant(now - report.age_ns)
        request.attempts_made = max(request.attempts_made, report.attempt)
        promised = _grow_reservation(reservation_at(request, endpoint, self._fleet), report.tokens)
        attempt = Attempt(request, endpoint, report.attempt, promised, sent)
        attempt.reports_tokens = ticket.stream or report.tokens > 0
        attempt.tokens, attempt.superseded = report.tokens, report.superseded
        if report.tokens >= request.output_tokens + TRUE_UP_TOKENS:
            attempt.tokens_charged = report.tokens
        if not report.superseded or report.counted is CountedUpTo.SENT:
            cached = promised.cached_tokens
            attempt.charged = self._charge_for(attempt, promised.prompt_tokens, attempt.tokens_charged, cached)
        self.by_number[ticket.request_id, report.attempt] = attempt
        if request.adapter:
            self._fleet.adapter_turns.begin(endpoint, request.adapter, now)
        # A leaving endpoint gets no new requests, so its cached prefixes are not recorded.
        self._occupancy.occupy(endpoint, promised, () if endpoint.leaving else request.hashes)
        self._start_metering(attempt, now)
        self._restore_progress(attempt, report, sent=sent, now=now)
        return attempt

    def _restore_progress(self, attempt: Attempt, report: AttemptReported, *, sent: Instant, now: Instant) -> None:
        """Restores the attempt's progress from its report."""
        # The tokens of a non-streaming response are reported before the caller receives any part of the response.
        attempt.first_token, computed_at = report.first_token or report.tokens > 0, _prefill_done_at(attempt, sent)
        attempt.prefilled = attempt.first_token or (not attempt.reports_tokens and computed_at <= now)
        attempt.prefilled_at = min(computed_at, now)
        self._occupancy.restore_progress(
            attempt.endpoint, attempt.reservation, tokens=report.tokens, computed=attempt.prefilled
        )
        self._estimate_past_time(attempt, report, now)
        if report.request_ended:
            # The report does not say why the request ended. In nearly all cases the client disconnected.
            self.record_cancel(attempt, now)
        if attempt.first_token:
            attempt.last_progress_at = now
            self.record_first_token(attempt, now)
        elif not attempt.reports_tokens and not attempt.prefilled:
            self._await_prefill(attempt, computed_at)

    def _estimate_past_time(self, attempt: Attempt, report: AttemptReported, now: Instant) -> None:
        """Estimates, from the attempt's age and progress, the endpoint time used before the takeover."""
        promised, time = attempt.reservation, attempt.engine_time.clock
        speed, output_ps = attempt.endpoint.settings.speed, 0
        if attempt.prefilled:
            adds_ps = _decode_step_ps(attempt)
            time.begin_decode(attempt.engine_time, adds_ps, now)
            output_ps = adds_ps * (report.tokens or attempt.tokens_charged)
        if report.request_ended:
            time.count_request_ended(attempt.engine_time)
        else:
            prompts, cached = attempt.ticket.prompts, promised.cached_tokens
            input_ps = speed.prefill_ps(promised.prompt_tokens, cached=cached, prompts=prompts)
            time.adopt(attempt.engine_time, report.age_ns, input_ps=input_ps, output_ps=output_ps)

    # Progress

    def record_first_token(self, attempt: Attempt, now: Instant) -> None:
        """Records the first token."""
        if not attempt.first_token:
            attempt.first_token = True
            attempt.last_progress_at = now
            attempt.endpoint.service_log.record_served(attempt.ticket, attempt.model, now)
            self._mark_prefilled(attempt, now)
        if attempt.reports_tokens and not attempt.streaming:
            attempt.streaming = True
            self._occupancy.start_stream(attempt.endpoint, now)

    def record_undelivered_first_token(self, attempt: Attempt, now: Instant) -> None:
        """Records the first token of a response that the engine streams but the caller receives in one piece."""
        attempt.reports_tokens = True
        self.record_first_token(attempt, now)

    def fire_prefill_timers(self, now: Instant) -> None:
        """Marks prompts of non-streaming requests as prefilled when their timers are due."""
        for request_id in self.prefill_timers.pop_fired():
            self._mark_prefilled(self._unstreamed[request_id], now)

    def _mark_prefilled(self, attempt: Attempt, now: Instant) -> None:
        """Marks the prompt as prefilled. It no longer delays other requests."""
        if not attempt.prefilled:
            attempt.prefilled, attempt.prefilled_at = True, now
            attempt.engine_time.clock.begin_decode(attempt.engine_time, _decode_step_ps(attempt), now)
            self._occupancy.record_prefilled(attempt.endpoint, attempt.reservation)

    def record_progress(self, event: AttemptsProgressed, now: Instant) -> None:
        heard: dict[EndpointRecord, EndpointProgress] = {}
        for report in event.attempts:
            attempt = self.by_number.get((report.request_id, report.attempt))
            if attempt is None:
                continue
            if (of_endpoint := heard.get(attempt.endpoint)) is None:
                of_endpoint = heard[attempt.endpoint] = EndpointProgress(late=event.late)
            if report.tokens:
                # A report without tokens means that the caller is not reading. It tells us nothing about the engine.
                of_endpoint.attempts += 1
                of_endpoint.tokens += report.tokens
                of_endpoint.took_ns += now - attempt.last_progress_at
                attempt.endpoint.service_log.record_served(attempt.ticket, attempt.model, now)
            of_endpoint.kv_tokens_more += attempt.add_tokens(report.tokens, now)
            if attempt.tokens >= attempt.tokens_charged + TRUE_UP_TOKENS:
                promised = attempt.reservation
                self._correct_charge(attempt, promised.prompt_tokens, attempt.tokens, promised.cached_tokens)
        for endpoint, of_endpoint in heard.items():
            self._occupancy.record_progress(endpoint, of_endpoint, now)

    # Completion

    def record_cancel(self, attempt: Attempt, now: Instant) -> None:
        """Records the work to charge to the tenant after its client disconnected.

        A prompt counts in full once its prefill has started, because engines do not stop in the middle of a prefill.
        The prompt size is the larger of two estimates, because the tenant's own requests determine one of them.
        """
        promised, tokens = attempt.reservation, attempt.tokens
        if attempt.prefilled and not attempt.reports_tokens:
            tokens = max(tokens, _estimated_tokens(attempt, now))
        predicted = self._predictions.prompt_tokens_if_cancelled(attempt.ticket, attempt.model)
        prompt_tokens = max(promised.prompt_tokens, predicted)
        # Keep the cached fraction of the prompt.
        cached_tokens = promised.cached_tokens * prompt_tokens // promised.prompt_tokens
        attempt.usage_at_cancel = (prompt_tokens, cached_tokens, tokens)

    def close(self, attempt: Attempt, request: Request | None, event: AttemptEnded, now: Instant) -> int:
        """Frees the attempt's slot, settles its charge and returns its total token count.

        Its request may have ended earlier.
        """
        request_id, attempt.ending, endpoint = event.request_id, event.ending, attempt.endpoint
        if event.limits is not None:
            self._fleet.quotas.record(endpoint, event.limits, now)
        served = event.ending is _COMPLETED
        if served:
            endpoint.service_log.completed += 1
            endpoint.service_log.record_served(attempt.ticket, attempt.model, now)
        if request is not None:
            request.finished_attempts = (*request.finished_attempts, attempt)
            if served and request.e2e_ns is not None:
                attempt.record_response_time(now)
        stay = attempt.engine_time
        stay.clock.end(stay, now)
        if endpoint.engine and not stay.request_ended:
            stay.clock.attribute(endpoint.id, endpoint.pool, stay)
        # How soon a client disconnects is no indication of how long other requests occupy their slots.
        self._fleet.pools[endpoint.pool].turnover.release(attempt, now, served=served)
        del self.by_number[request_id, attempt.number]
        if self._unstreamed.get(request_id) is attempt:
            del self._unstreamed[request_id]
            self.prefill_timers.clear(request_id)
        if attempt.adapter:
            endpoint.adapters.end(attempt.adapter)
        self._occupancy.vacate(
            endpoint,
            attempt.reservation,
            tokens=attempt.tokens,
            prefilled=attempt.prefilled,
            streaming=attempt.streaming,
        )
        return self._settle(attempt, event)

    def _settle(self, attempt: Attempt, event: AttemptEnded) -> int:
        """Charges the actual usage and updates the predictions."""
        promised, usage = attempt.reservation, event.usage
        prompt_tokens, cached_tokens = (
            (promised.prompt_tokens, promised.cached_tokens) if attempt.first_token else (0, 0)
        )
        output_tokens = attempt.tokens
        if usage is not None and usage.source is _ENGINE:
            prompt_tokens, cached_tokens, output_tokens = usage.prompt_tokens, usage.cached_tokens, usage.output_tokens
            if cached_tokens > prompt_tokens:
                cached_tokens = prompt_tokens
            if event.ending is _COMPLETED and not attempt.ticket.mirror_route:
                answers, limit = attempt.answers, attempt.output_limit
                self._predictions.learn(attempt.ticket, attempt.model, usage, answers=answers, output_limit=limit)
        elif attempt.usage_at_cancel is not None:
            prompt_tokens, cached_tokens, output_tokens = attempt.usage_at_cancel
            output_tokens = max(output_tokens, attempt.tokens)
        elif event.ending is _COMPLETED:
            # If the engine reports no usage, charge the predicted usage.
            prompt_tokens, cached_tokens = promised.prompt_tokens, promised.cached_tokens
            output_tokens = attempt.tokens or attempt.tokens_charged
        self._correct_charge(attempt, prompt_tokens, output_tokens, cached_tokens)
        attempt.tokens_used = (prompt_tokens, cached_tokens, output_tokens)
        return prompt_tokens + output_tokens

    def for_request(self, request: Request) -> Sequence[Attempt]:
        """Returns all known attempts of a request, running or finished, ordered by number."""
        if request.running is None and request.attempts_made == len(request.finished_attempts) == 1:
            return request.finished_attempts
        names = [(request.ticket.request_id, number) for number in range(1, request.attempts_made + 1)]
        in_flight = [self.by_number[name] for name in names if name in self.by_number]
        return sorted((*request.finished_attempts, *in_flight), key=_number)

    def _correct_charge(self, attempt: Attempt, prompt_tokens: int, output_tokens: int, cached_tokens: int) -> None:
        """Corrects the charge of an attempt."""
        # The tenant does not pay for an attempt that lost to its hedge.
        charge = 0 if attempt.superseded else self._charge_for(attempt, prompt_tokens, output_tokens, cached_tokens)
        self._backlog.settle(attempt.band, attempt.endpoint.pool, attempt.account, charge - attempt.charged)
        attempt.charged, attempt.tokens_charged = charge, output_tokens

    def _charge_for(self, attempt: Attempt, prompt_tokens: int, output_tokens: int, cached_tokens: int) -> int:
        """Returns the fairness charge for this usage on the attempt's endpoint. Cached tokens are free."""
        speed, prompts = attempt.endpoint.settings.speed, attempt.ticket.prompts
        cost = cost_ns(speed, prompt_tokens, output_tokens, cached_tokens, prompts)
        return fair_queue.charge(cost, self._rules.weight(attempt.account))


def abort(request: Request, attempt: Attempt, reason: str, out: list[Command]) -> None:
    """Emits the command to stop an attempt. `AttemptEnded` still follows."""
    out.append(Abort(request.ticket.request_id, attempt.number, attempt.endpoint.id, reason))


def _number(attempt: Attempt) -> int:
    return attempt.number


def _decode_step_ps(attempt: Attempt) -> int:
    """Returns the time that the attempt adds to each decode step."""
    speed, prompt_tokens = attempt.endpoint.settings.speed, attempt.reservation.prompt_tokens
    return decode_step_ps(speed, prompt_tokens, attempt.tokens_charged, attempt.answers)


def _estimated_tokens(attempt: Attempt, now: Instant) -> int:
    """Estimates the tokens of a non-streaming response so far: one token per completion and step."""
    if attempt.ticket.api in APIS_WITHOUT_OUTPUT:
        return 0
    endpoint, promised, answers = attempt.endpoint, attempt.reservation, attempt.answers
    held, speed = endpoint.device_load, endpoint.settings.speed
    step_ps = speed.decode_ps(held.in_flight + held.foreign, kv_tokens=held.kv_used + held.kv_foreign)
    steps = (now - attempt.prefilled_at) * _PS_PER_NS * 100 // max(1, step_ps * endpoint.speed_estimator.decode_percent)
    most = promised.kv_tokens - promised.prompt_tokens
    return min(answers * steps, most if attempt.output_limit is None else answers * attempt.output_limit)


def _prefill_done_at(attempt: Attempt, sent: Instant) -> Instant:
    """Returns when the prompt can be assumed to be prefilled if no first token is reported.

    A short prompt counts as prefilled when it is sent.
    """
    return sent if _is_short(attempt) else after(sent, attempt.endpoint.first_token_ns(attempt.reservation))


def _is_short(attempt: Attempt) -> bool:
    return _SHORT_SHARE * attempt.reservation.prompt_tokens <= attempt.endpoint.settings.speed.chunk_tokens


def _grow_reservation(reservation: Reservation, tokens: int) -> Reservation:
    """Returns the reservation, extended to cover the tokens already produced."""
    lacking = reservation.prompt_tokens + tokens - reservation.kv_tokens
    return reservation if lacking <= 0 else reservation.with_kv_tokens(reservation.kv_tokens + lacking + TRUE_UP_TOKENS)
