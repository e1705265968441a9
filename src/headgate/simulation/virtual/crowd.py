"""What do the callers do? They ask, wait, leave when their patience ends, and some try again.

Their patience counts from when they first asked, over all tries and the waits between them. It ends with the first
token of a streamed answer, and with the end of one that comes whole.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random

from headgate.core.commands import End
from headgate.core.events import Event, RequestArrived, RequestWithdrawn, WithdrawalCause
from headgate.model.outcome import FACES, Outcome, RetryAfter
from headgate.model.ticket import Ticket
from headgate.model.units import BYTES_PER_TOKEN, SECOND, ClassName, Duration, Instant, ModelName, RequestId, after
from headgate.simulation.virtual.manners import wait_before_retry_s
from headgate.simulation.virtual.scenario import Callers
from headgate.simulation.virtual.story import Story
from headgate.simulation.virtual.timeline import Timeline
from headgate.simulation.workload.arrival import Arrival, Arrivals
from headgate.simulation.workload.hashes import packed_hashes

_EASY_GOING = Callers()


class Caller:
    """One request in the eyes of who sent it."""

    __slots__ = ("arrival", "asks", "began", "in_flight", "manners", "over", "story")

    def __init__(self, arrival: Arrival, story: Story, manners: Callers) -> None:
        self.arrival = arrival
        self.story = story
        self.manners = manners
        self.asks: RequestId | None = None
        """The try that is open; None between two tries."""
        self.began = False
        """Whether the open try has its first token."""
        self.in_flight = 0
        """Attempts of the open try that are at engines."""
        self.over = False


class Crowd:
    def __init__(
        self,
        arrivals: Arrivals,
        timeline: Timeline,
        *,
        callers: Mapping[ClassName, Callers],
        model: ModelName,
        seed: int,
        tell: Callable[[Event], None],
        ended: Callable[[Story], None],
    ) -> None:
        self._arrivals = arrivals
        self._manners = callers
        self._model = model
        self._chance = Random(f"{seed} retries")
        self._timeline = timeline
        self._tell = tell
        self._ended = ended
        self._asking: dict[RequestId, Caller] = {}
        self._come = 0
        self._gone = 0
        self._more = True
        self.queued: Counter[ClassName] = Counter(dict.fromkeys(callers, 0))
        """How many wait in the gateway, by class."""

    @property
    def unfinished(self) -> bool:
        return self._more or self._gone < self._come

    @property
    def gone(self) -> int:
        """How many requests are over."""
        return self._gone

    def caller(self, request_id: RequestId) -> Caller | None:
        return self._asking.get(request_id)

    # ---------------------------------------------------------------------------------------------- what callers do

    def expect_next(self) -> None:
        """Sets the moment of the next arrival. Each that comes does so for the one after it."""
        arrival = next(self._arrivals, None)
        if arrival is None:
            self._more = False
        else:
            self._timeline.at(arrival.at, self._arrive, arrival)

    def _arrive(self, arrival: Arrival) -> None:
        story = Story(
            self._come,
            arrival.service_class,
            arrival.tenant,
            arrival.at,
            prompt_tokens=arrival.prompt_tokens,
            answer_tokens=arrival.output_tokens,
        )
        self._come += 1
        caller = Caller(arrival, story, self._manners.get(arrival.service_class, _EASY_GOING))
        leave_ns = caller.manners.leave_ns
        if leave_ns is not None:
            self._timeline.at(after(arrival.at, leave_ns), self._lose_patience, caller)
        self._ask(caller)
        self.expect_next()

    def _ask(self, caller: Caller) -> None:
        if caller.over:
            return
        arrival, story = caller.arrival, caller.story
        story.tries += 1
        story.first_token_at = None
        story.output_tokens = 0
        request_id = RequestId(f"r{story.number}" if story.tries == 1 else f"r{story.number}.{story.tries}")
        caller.asks, caller.began, caller.in_flight = request_id, False, 0
        self._asking[request_id] = caller
        self.queued[arrival.service_class] += 1
        self._tell(
            RequestArrived(
                Ticket(
                    request_id,
                    caller.manners.api,
                    self._model,
                    arrival.tenant,
                    stream=caller.manners.stream,
                    # A gateway is told bytes, and takes them for tokens at this rate.
                    prompt_bytes=arrival.prompt_tokens * BYTES_PER_TOKEN,
                    class_named=arrival.service_class,
                    first_token_ns_left=caller.manners.allows_ns,
                    client_retries=arrival.tries + story.tries - 1,
                    output_tokens_max=arrival.output_tokens if caller.manners.names_length else None,
                    prefix=packed_hashes(arrival),
                )
            )
        )

    def _lose_patience(self, caller: Caller) -> None:
        if caller.over or caller.began:
            return
        if caller.asks is not None:
            self._tell(RequestWithdrawn(caller.asks, WithdrawalCause.CLIENT_LEFT))
        else:
            caller.story.outcome = Outcome.CANCELLED
            leave_ns = caller.manners.leave_ns
            assert leave_ns is not None
            self._finish(caller, after(caller.story.arrived_at, leave_ns))

    # ----------------------------------------------------------------------------------------------- what they are told

    def sent(self, caller: Caller) -> None:
        """The open try is at an engine, or at one more."""
        if not caller.in_flight:
            self.queued[caller.arrival.service_class] -= 1
        caller.in_flight += 1
        caller.story.attempts += 1

    def came_back(self, caller: Caller) -> None:
        """An attempt has ended; unless the try ends with it or another attempt goes on, it waits again."""
        caller.in_flight -= 1
        if not caller.in_flight:
            self.queued[caller.arrival.service_class] += 1

    def began(self, caller: Caller, now: Instant) -> None:
        caller.began = True
        caller.story.first_token_at = now

    def end(self, end: End, now: Instant) -> None:
        caller = self._asking.pop(end.request_id)
        story = caller.story
        if not caller.in_flight:
            self.queued[caller.arrival.service_class] -= 1
        story.waited_ns += end.waited_ns
        story.outcome = end.outcome
        wait = None if caller.began else self._wait(end, caller)
        if wait is None:
            self._finish(caller, now)
        else:
            caller.asks = None
            self._timeline.at(after(now, wait), self._ask, caller)

    def _wait(self, end: End, caller: Caller) -> Duration | None:
        """How long until the caller tries again, if it does."""
        if end.outcome in (Outcome.COMPLETED, Outcome.CANCELLED):
            return None
        retries_taken = caller.story.tries - 1
        if retries_taken >= caller.manners.retries:
            return None
        face = FACES[end.outcome]
        asked_s = None
        if face.retry_after is not RetryAfter.ABSENT:
            asked_s = (SECOND if end.retry_after_ns is None else end.retry_after_ns) / SECOND
        wait_s = wait_before_retry_s(
            status=face.status,
            should_retry=face.should_retry,
            asked_s=asked_s,
            retries_taken=retries_taken,
            chance=self._chance.random(),
        )
        return None if wait_s is None else Duration(round(wait_s * SECOND))

    def _finish(self, caller: Caller, now: Instant) -> None:
        caller.over = True
        caller.asks = None
        caller.story.ended_at = now
        self._gone += 1
        self._ended(caller.story)
