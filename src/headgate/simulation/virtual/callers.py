"""Simulated clients. They send requests, disconnect when their timeout expires, and retry.

The timeout starts with the first try and covers all retries and the backoff between them. It applies until the
first token of a streaming response, or until the end of a non-streaming one.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from random import Random

from headgate.core.commands import Dispatch, End
from headgate.core.events import Event, RequestArrived, RequestWithdrawn, WithdrawalCause
from headgate.model.outcome import HTTP_REPLIES, Outcome, RetryAfter
from headgate.model.ticket import APIS_WITHOUT_OUTPUT, Ticket
from headgate.model.units import (
    BYTES_PER_TOKEN,
    SECOND,
    ClassName,
    Duration,
    Instant,
    ModelName,
    PoolName,
    RequestId,
    after,
)
from headgate.simulation.options import CallerBehaviour
from headgate.simulation.virtual.client_retry import retry_delay_s
from headgate.simulation.virtual.run_observer import RequestTrace
from headgate.simulation.virtual.timeline import Timeline
from headgate.simulation.workload.arrival import Arrival, Arrivals
from headgate.simulation.workload.prefix_hashes import packed_prefix_hashes

_DEFAULT_BEHAVIOUR = CallerBehaviour()


class SimulatedCaller:
    """A simulated client with one request, across all its tries."""

    __slots__ = (
        "api",
        "arrival",
        "behaviour",
        "finished",
        "generates_nothing",
        "has_first_token",
        "in_flight",
        "open_request_id",
        "pools",
        "stream",
        "trace",
    )

    def __init__(self, arrival: Arrival, trace: RequestTrace, behaviour: CallerBehaviour) -> None:
        self.arrival = arrival
        self.trace = trace
        self.behaviour = behaviour
        self.api = arrival.api or behaviour.api
        self.generates_nothing = self.api in APIS_WITHOUT_OUTPUT
        wanted = behaviour.stream if arrival.stream is None else arrival.stream
        self.stream = wanted and not self.generates_nothing
        self.open_request_id: RequestId | None = None
        """ID of the open try. None between tries."""
        self.has_first_token = False
        """Whether the open try has received its first token."""
        self.in_flight = 0
        """Number of the open try's attempts that are on engines."""
        self.pools: dict[int, PoolName] = {}
        """Pools of the open try's attempts, by attempt."""
        self.finished = False


class SimulatedCallers:
    def __init__(
        self,
        arrivals: Arrivals,
        timeline: Timeline,
        *,
        callers: Mapping[ClassName, CallerBehaviour],
        model: ModelName,
        models: Collection[ModelName],
        seed: int,
        emit: Callable[[Event], None],
        on_request_ended: Callable[[RequestTrace], None],
    ) -> None:
        """`model` is the model of requests whose own model is unknown or not one of `models`."""
        self._arrivals = arrivals
        self._behaviours = callers
        self._model = model
        self._models: Mapping[ModelName | None, ModelName] = {each: each for each in models}
        self._rng = Random(f"{seed} retries")
        self._timeline = timeline
        self._emit = emit
        self._on_request_ended = on_request_ended
        self._by_request_id: dict[RequestId, SimulatedCaller] = {}
        self._arrived_count = 0
        self._finished_count = 0
        self._arrivals_pending = True
        self.queued: Counter[ClassName] = Counter(dict.fromkeys(callers, 0))
        """Requests waiting in the gateway, by class."""

    @property
    def unfinished(self) -> bool:
        return self._arrivals_pending or self._finished_count < self._arrived_count

    @property
    def finished(self) -> int:
        """Number of requests that have ended."""
        return self._finished_count

    def caller(self, request_id: RequestId) -> SimulatedCaller | None:
        return self._by_request_id.get(request_id)

    # ------------------------------------------------------------------------------------------------ client actions

    def schedule_next_arrival(self) -> None:
        """Schedules the next arrival. Every arrival schedules the one after it."""
        arrival = next(self._arrivals, None)
        if arrival is None:
            self._arrivals_pending = False
        else:
            self._timeline.schedule(arrival.at, self._arrive, arrival)

    def _arrive(self, arrival: Arrival) -> None:
        story = RequestTrace(
            self._arrived_count,
            arrival.service_class,
            arrival.tenant,
            arrival.at,
            prompt_tokens=arrival.prompt_tokens,
            full_output_tokens=arrival.output_tokens,
        )
        self._arrived_count += 1
        caller = SimulatedCaller(arrival, story, self._behaviours.get(arrival.service_class, _DEFAULT_BEHAVIOUR))
        leave_ns = caller.behaviour.client_timeout_ns
        if leave_ns is not None:
            self._timeline.schedule(after(arrival.at, leave_ns), self._time_out, caller)
        self._send_request(caller)
        self.schedule_next_arrival()

    def _send_request(self, caller: SimulatedCaller) -> None:
        if caller.finished:
            return
        arrival, story = caller.arrival, caller.trace
        story.tries += 1
        story.first_token_at = None
        story.output_tokens = 0
        request_id = RequestId(f"r{story.number}" if story.tries == 1 else f"r{story.number}.{story.tries}")
        caller.open_request_id, caller.has_first_token, caller.in_flight = request_id, False, 0
        caller.pools.clear()
        self._by_request_id[request_id] = caller
        self.queued[arrival.service_class] += 1
        self._emit(
            RequestArrived(
                Ticket(
                    request_id,
                    caller.api,
                    self._models.get(arrival.model, self._model),
                    arrival.tenant,
                    stream=caller.stream,
                    # A gateway knows only the size in bytes, and converts it to tokens at this rate.
                    prompt_bytes=arrival.prompt_tokens * BYTES_PER_TOKEN,
                    requested_class=arrival.service_class,
                    first_token_ns_left=caller.behaviour.first_token_deadline_ns,
                    client_retries=arrival.previous_tries + story.tries - 1,
                    output_tokens_max=arrival.output_tokens if caller.behaviour.sends_max_tokens else None,
                    prefix_hashes=packed_prefix_hashes(arrival),
                    session=arrival.session,
                )
            )
        )

    def _time_out(self, caller: SimulatedCaller) -> None:
        if caller.finished or caller.has_first_token:
            return
        if caller.open_request_id is not None:
            self._emit(RequestWithdrawn(caller.open_request_id, WithdrawalCause.CLIENT_DISCONNECTED))
        else:
            caller.trace.outcome = Outcome.CANCELLED
            leave_ns = caller.behaviour.client_timeout_ns
            assert leave_ns is not None
            self._finish(caller, after(caller.trace.arrived_at, leave_ns))

    # ------------------------------------------------------------------------------------------- results for clients

    def on_dispatched(self, caller: SimulatedCaller, dispatch: Dispatch) -> None:
        """Counts an attempt of the open try that was sent to an engine."""
        caller.pools[dispatch.attempt] = dispatch.pool
        if not caller.in_flight:
            self.queued[caller.arrival.service_class] -= 1
        caller.in_flight += 1
        caller.trace.attempts += 1

    def on_attempt_ended(self, caller: SimulatedCaller) -> None:
        """Counts an attempt that has ended. If no other attempt is running, the try waits in the queue again."""
        caller.in_flight -= 1
        if not caller.in_flight:
            self.queued[caller.arrival.service_class] += 1

    def on_first_token(self, caller: SimulatedCaller, now: Instant) -> None:
        caller.has_first_token = True
        caller.trace.first_token_at = now

    def on_end(self, end: End, now: Instant) -> None:
        caller = self._by_request_id.pop(end.request_id)
        story = caller.trace
        if not caller.in_flight:
            self.queued[caller.arrival.service_class] -= 1
        story.waited_ns += end.waited_ns
        story.outcome = end.outcome
        for bill in end.bills:
            story.billed_nano_usd[caller.pools[bill.attempt]] += bill.nano_usd
        wait = None if caller.has_first_token else self._retry_delay(end, caller)
        if wait is None:
            self._finish(caller, now)
        else:
            caller.open_request_id = None
            self._timeline.schedule(after(now, wait), self._send_request, caller)

    def _retry_delay(self, end: End, caller: SimulatedCaller) -> Duration | None:
        """Returns the backoff before the client's next try, or None if the client does not retry."""
        if end.outcome in (Outcome.COMPLETED, Outcome.CANCELLED):
            return None
        retries_taken = caller.trace.tries - 1
        if retries_taken >= caller.behaviour.retries:
            return None
        face = HTTP_REPLIES[end.outcome]
        asked_s = None
        if face.retry_after is not RetryAfter.ABSENT:
            asked_s = (SECOND if end.retry_after_ns is None else end.retry_after_ns) / SECOND
        wait_s = retry_delay_s(
            status=face.status,
            should_retry=face.should_retry,
            retry_after_s=asked_s,
            retries_taken=retries_taken,
            random_share=self._rng.random(),
        )
        return None if wait_s is None else Duration(round(wait_s * SECOND))

    def _finish(self, caller: SimulatedCaller, now: Instant) -> None:
        caller.finished = True
        caller.open_request_id = None
        caller.trace.ended_at = now
        self._finished_count += 1
        self._on_request_ended(caller.trace)
