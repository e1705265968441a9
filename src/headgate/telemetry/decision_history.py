"""Observer that keeps the history of recent requests.

A history contains the events and commands of one request with their times. To keep decisions fast, these are stored
unprocessed; `explanation.py` turns them into text on demand. Histories contain no prompts, responses or keys.

The number of requests, the steps per request, and the length of text from clients and engines are all limited. Requests
that were rejected on arrival have a separate limit, so that a flood of rejections does not evict other histories. A
third limit applies to requests that are still open when they would be evicted.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headgate.core.commands import Abort, Command, Dispatch, Eject, End, Hold
from headgate.core.events import AttemptEnded, Event, FirstToken, PolicyChanged, RequestArrived
from headgate.model.routes import mirror_id
from headgate.model.ticket import Ticket
from headgate.model.units import Instant, RequestId

REQUESTS_MAX = 5_000
"""Maximum number of histories. Each takes about 1.5 kB."""
REJECTED_MAX = 1_000
"""Maximum number of histories of requests that were rejected on arrival, in addition to the others."""
LONG_OPEN_MAX = 5_000
"""Maximum number of histories of requests that were still open when they would have been evicted."""
STEPS_MAX = 40
"""Maximum number of steps kept for one request. The end of the request is always kept."""
EJECTIONS_MAX = 1_000
POLICIES_MAX = 100
NAME_CHARS_MAX = 200
"""Maximum length of a name that the client sent: model, class or service tier."""
REASON_CHARS_MAX = 600

_StepBeforeEnd = FirstToken | AttemptEnded | Dispatch | Hold | Abort
Step = _StepBeforeEnd | End


class RequestHistory:
    """Properties and steps of one request."""

    __slots__ = (
        "api",
        "arrived_at",
        "client_retries",
        "completion_ns_left",
        "ended",
        "first_token_ns_left",
        "model",
        "model_tier",
        "n",
        "output_tokens_max",
        "prompt_bytes",
        "prompts",
        "request_id",
        "requested_class",
        "service_tier",
        "steps",
        "stream",
        "tenant",
    )

    def __init__(self, ticket: Ticket, now: Instant) -> None:
        # Copy individual fields, because the ticket also contains prompt hashes and the client's Idempotency-Key.
        self.request_id = ticket.request_id
        self.arrived_at = now
        self.tenant = ticket.tenant
        self.api = ticket.api
        self.stream = ticket.stream
        self.prompt_bytes = ticket.prompt_bytes
        # A class and tiers are rarely given, so the call is saved.
        requested_class, service_tier, model_tier = ticket.requested_class, ticket.service_tier, ticket.model_tier
        self.model = _truncated_name(ticket.model)
        self.requested_class = None if requested_class is None else _truncated_name(requested_class)
        self.service_tier = None if service_tier is None else _truncated_name(service_tier)
        self.model_tier = None if model_tier is None else _truncated_name(model_tier)
        self.client_retries = ticket.client_retries
        self.first_token_ns_left = ticket.first_token_ns_left
        self.completion_ns_left = ticket.completion_ns_left
        self.n = ticket.n
        self.prompts = ticket.prompts
        self.output_tokens_max = ticket.output_tokens_max
        self.steps: list[tuple[Instant, Step]] = []
        self.ended = False


@dataclass(frozen=True, slots=True)
class HistorySnapshot:
    """Data needed to explain one request, at one point in time. May be read in another thread."""

    history: RequestHistory
    requests: tuple[RequestHistory, ...]
    """Histories of all requests that were not rejected on arrival."""
    ejections: tuple[tuple[Instant, Eject], ...]
    policies: tuple[tuple[Instant, str], ...]
    """Time and policy hash of each policy change."""
    evicted_until: Instant
    """Time of the last step in any evicted history. After this time, histories are complete."""
    mirror: RequestHistory | None = None
    """History of the request's copy. None if there is none."""


@dataclass(frozen=True, slots=True)
class HistoryRetention:
    """Limits and current content of the history."""

    requests_max: int
    rejected_max: int
    kept: int
    """Number of histories, including those of rejected requests."""
    oldest_at: Instant | None
    """Arrival time of the oldest request kept; None if no requests are kept."""


class DecisionHistory:
    """Observer that records the histories."""

    def __init__(
        self, *, requests_max: int = REQUESTS_MAX, rejected_max: int = REJECTED_MAX, long_open_max: int = LONG_OPEN_MAX
    ) -> None:
        self._requests_max = requests_max
        self._lasting_max = long_open_max
        self._refused_max = rejected_max
        self._histories: dict[RequestId, RequestHistory] = {}
        self._admitted: deque[RequestHistory] = deque()
        self._rejected: deque[RequestHistory] = deque()
        self._long_open: dict[RequestId, RequestHistory] = {}
        """Open requests that are older than all requests in `_admitted`. When a request ends, it moves back to
        `_admitted`.
        """
        self._ejections: deque[tuple[Instant, Eject]] = deque(maxlen=EJECTIONS_MAX)
        self._policies: deque[tuple[Instant, str]] = deque(maxlen=POLICIES_MAX)
        self._forgotten_until = Instant(0)
        self._context_changed_at = Instant(-1)
        """Time of the last ejection or policy change."""

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        # This runs on every decision, so frequent events come first, and types are compared instead of using pattern
        # matching or `isinstance`, which take several times as long for each type that does not match.
        if type(event) is RequestArrived:
            self._arrived(event.ticket, commands, now)
        elif type(event) is AttemptEnded:
            self._add(event if len(event.detail) <= REASON_CHARS_MAX else _truncated_attempt(event), now)
        elif type(event) is FirstToken:
            self._add(event, now)
        elif type(event) is PolicyChanged:
            self._policies.append((now, event.hash))
            self._context_changed_at = now
        for command in commands:
            if type(command) is Dispatch:
                self._add(command, now)
            elif type(command) is End:
                self._ended(command if len(command.reason) <= REASON_CHARS_MAX else _truncated_end(command), now)
            elif type(command) is Hold or type(command) is Abort:
                self._add(command, now)
            elif type(command) is Eject:
                self._ejections.append((now, _truncated_ejection(command)))
                self._context_changed_at = now

    def snapshot(self, request_id: RequestId) -> HistorySnapshot | None:
        """Data needed to explain the request; None if it is unknown."""
        history = self._histories.get(request_id)
        if history is None:
            return None
        around = (*self._long_open.values(), *self._admitted), tuple(self._ejections), tuple(self._policies)
        return HistorySnapshot(history, *around, self._forgotten_until, self._histories.get(mirror_id(request_id)))

    def history(self, request_id: RequestId) -> RequestHistory | None:
        return self._histories.get(request_id)

    def context_events(
        self, history: RequestHistory
    ) -> tuple[tuple[tuple[Instant, Eject], ...], tuple[tuple[Instant, str], ...]]:
        """Policy changes since the request arrived, and ejections of endpoints that it was sent to."""
        since = history.arrived_at
        if self._context_changed_at < since:
            return (), ()
        places = {step.endpoint_id for _, step in history.steps if isinstance(step, Dispatch)}
        ejections = (each for each in self._ejections if each[0] >= since and each[1].endpoint_id in places)
        return tuple(ejections), tuple(each for each in self._policies if each[0] >= since)

    def retention(self) -> HistoryRetention:
        oldest = [each[0].arrived_at for each in (self._admitted, self._rejected) if each]
        oldest += [each.arrived_at for each in self._long_open.values()]
        return HistoryRetention(self._requests_max, self._refused_max, len(self._histories), min(oldest, default=None))

    def _arrived(self, ticket: Ticket, commands: Sequence[Command], now: Instant) -> None:
        history = self._histories[ticket.request_id] = RequestHistory(ticket, now)
        if commands and _has_end(commands, ticket.request_id):
            self._rejected.append(history)
            if len(self._rejected) > self._refused_max:
                self._evict(self._rejected.popleft())
        else:
            self._admit(history)

    def _admit(self, history: RequestHistory) -> None:
        self._admitted.append(history)
        if len(self._admitted) <= self._requests_max:
            return
        oldest = self._admitted.popleft()
        if not oldest.ended:
            # Without its history, the request would be explained as if it had never been scheduled.
            self._long_open[oldest.request_id] = oldest
            if len(self._long_open) <= self._lasting_max:
                return
            oldest = self._long_open.pop(next(iter(self._long_open)))
        if oldest.steps:
            self._forgotten_until = max(self._forgotten_until, oldest.steps[-1][0])
        self._evict(oldest)

    def _evict(self, history: RequestHistory) -> None:
        # A later request may have reused the id.
        if self._histories.get(history.request_id) is history:
            del self._histories[history.request_id]

    def _add(self, step: _StepBeforeEnd, now: Instant) -> None:
        history = self._histories.get(step.request_id)
        if history is not None and len(history.steps) < STEPS_MAX:
            history.steps.append((now, step))

    def _ended(self, end: End, now: Instant) -> None:
        history = self._histories.get(end.request_id)
        if history is None:
            return
        history.steps.append((now, end))
        history.ended = True
        if self._long_open and self._long_open.get(history.request_id) is history:
            del self._long_open[history.request_id]
            self._admit(history)


def _has_end(commands: Sequence[Command], request_id: RequestId) -> bool:
    for command in commands:  # noqa: SIM110  A generator is slower.
        if type(command) is End and command.request_id == request_id:
            return True
    return False


def _truncated_end(end: End) -> End:
    return replace(end, reason=_truncate(end.reason, REASON_CHARS_MAX))


def _truncated_attempt(ended: AttemptEnded) -> AttemptEnded:
    return replace(ended, detail=_truncate(ended.detail, REASON_CHARS_MAX))


def _truncated_ejection(eject: Eject) -> Eject:
    kept = len(eject.reason) <= REASON_CHARS_MAX
    return eject if kept else replace(eject, reason=_truncate(eject.reason, REASON_CHARS_MAX))


def _truncated_name(text: str) -> str:
    return text if len(text) <= NAME_CHARS_MAX else _truncate(text, NAME_CHARS_MAX)


def _truncate(text: str, length: int) -> str:
    return f"{text[: length - 1]}…"
