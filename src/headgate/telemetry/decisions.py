"""What happened to the last requests, and what was decided about them?

An observer that keeps the history of each request: events and commands with their moments, as they are. Nothing is made
of them on the deciding path; `explanation.py` tells them in words when somebody asks. Neither prompts nor answers nor
keys are in them.

Everything here is bounded: how many requests are kept, how many steps of each, how long a text may be that a caller or
an engine had a hand in. Requests that were refused on arrival have a bound of their own, so that a flood of refusals
does not wash away what became of the others; so have those that are open for longer than the others are kept.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headgate.core.commands import Abort, Command, Dispatch, Eject, End, Hold
from headgate.core.events import AttemptEnded, Event, FirstToken, PolicyChanged, RequestArrived
from headgate.model.ticket import Ticket
from headgate.model.units import Instant, RequestId

REQUESTS_MAX = 5_000
"""About a kilobyte and a half each."""
REFUSED_MAX = 1_000
"""Of those refused on arrival, which are not among the others."""
LASTING_MAX = 5_000
"""Of those still open when they would be forgotten."""
STEPS_MAX = 40
"""Of one request; its end is kept in any case."""
EJECTIONS_MAX = 1_000
POLICIES_MAX = 100
NAME_CHARS_MAX = 200
"""Of what a caller names: a model, a class, a tier."""
REASON_CHARS_MAX = 600

Step = FirstToken | AttemptEnded | Dispatch | Hold | Abort | End


class History:
    """What one request asked for, and what became of it."""

    __slots__ = (
        "api",
        "arrived_at",
        "class_named",
        "client_retries",
        "completion_ns_left",
        "ended",
        "first_token_ns_left",
        "model",
        "n",
        "output_tokens_max",
        "prompt_bytes",
        "prompts",
        "request_id",
        "rung",
        "service_tier",
        "steps",
        "stream",
        "tenant",
    )

    def __init__(self, ticket: Ticket, now: Instant) -> None:
        # Not the ticket itself, which holds hashes of the prompt and the caller's Idempotency-Key.
        self.request_id = ticket.request_id
        self.arrived_at = now
        self.tenant = ticket.tenant
        self.api = ticket.api
        self.stream = ticket.stream
        self.prompt_bytes = ticket.prompt_bytes
        self.model = _name(ticket.model)
        self.class_named = _name(ticket.class_named)
        self.service_tier = _name(ticket.service_tier)
        self.rung = _name(ticket.rung)
        self.client_retries = ticket.client_retries
        self.first_token_ns_left = ticket.first_token_ns_left
        self.completion_ns_left = ticket.completion_ns_left
        self.n = ticket.n
        self.prompts = ticket.prompts
        self.output_tokens_max = ticket.output_tokens_max
        self.steps: list[tuple[Instant, Step]] = []
        self.ended = False


@dataclass(frozen=True, slots=True)
class Picture:
    """All that is needed to explain one request, as of one moment. It may be looked at in another thread."""

    history: History
    requests: tuple[History, ...]
    """Those that were not refused on arrival."""
    ejections: tuple[tuple[Instant, Eject], ...]
    policies: tuple[tuple[Instant, str], ...]
    """When which policy came into force, by its hash."""
    forgotten_until: Instant
    """Up to when something may have happened to requests that are no longer known."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How much is kept."""

    requests_max: int
    refused_max: int
    held: int
    """How many requests are, refused or not."""
    since: Instant | None
    """When the oldest of them arrived."""


class Decisions:
    """The observer."""

    def __init__(
        self, *, requests_max: int = REQUESTS_MAX, refused_max: int = REFUSED_MAX, lasting_max: int = LASTING_MAX
    ) -> None:
        self._requests_max = requests_max
        self._lasting_max = lasting_max
        self._refused_max = refused_max
        self._histories: dict[RequestId, History] = {}
        self._admitted: deque[History] = deque()
        self._refused: deque[History] = deque()
        self._lasting: dict[RequestId, History] = {}
        """Open, and older than all that are admitted; when one ends it is kept as long as what arrives then."""
        self._ejections: deque[tuple[Instant, Eject]] = deque(maxlen=EJECTIONS_MAX)
        self._policies: deque[tuple[Instant, str]] = deque(maxlen=POLICIES_MAX)
        self._forgotten_until = Instant(0)

    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        match event:
            case RequestArrived():
                self._arrived(event.ticket, commands, now)
            case FirstToken():
                self._add(event, now)
            case AttemptEnded():
                self._add(_bounded_attempt(event), now)
            case PolicyChanged():
                self._policies.append((now, event.hash))
            case _:
                pass
        for command in commands:
            match command:
                case Dispatch() | Hold() | Abort():
                    self._add(command, now)
                case End():
                    self._add(_bounded_end(command), now)
                case Eject():
                    self._ejections.append((now, _bounded_ejection(command)))
                case _:
                    pass

    def picture(self, request_id: RequestId) -> Picture | None:
        """What is known of this request at the moment; None where nothing is."""
        history = self._histories.get(request_id)
        if history is None:
            return None
        around = (*self._lasting.values(), *self._admitted), tuple(self._ejections), tuple(self._policies)
        return Picture(history, *around, self._forgotten_until)

    def history(self, request_id: RequestId) -> History | None:
        return self._histories.get(request_id)

    def around(self, history: History) -> tuple[tuple[tuple[Instant, Eject], ...], tuple[tuple[Instant, str], ...]]:
        """The ejections of endpoints that it was at, and the changes of policy, since it arrived."""
        since = history.arrived_at
        if not (_after(self._ejections, since) or _after(self._policies, since)):
            return (), ()
        places = {step.endpoint_id for _, step in history.steps if isinstance(step, Dispatch)}
        ejections = (each for each in self._ejections if each[0] >= since and each[1].endpoint_id in places)
        return tuple(ejections), tuple(each for each in self._policies if each[0] >= since)

    def reach(self) -> Reach:
        oldest = [each[0].arrived_at for each in (self._admitted, self._refused) if each]
        oldest += [each.arrived_at for each in self._lasting.values()]
        return Reach(self._requests_max, self._refused_max, len(self._histories), min(oldest, default=None))

    def _arrived(self, ticket: Ticket, commands: Sequence[Command], now: Instant) -> None:
        history = self._histories[ticket.request_id] = History(ticket, now)
        if commands and _has_end(commands, ticket.request_id):
            self._refused.append(history)
            if len(self._refused) > self._refused_max:
                self._forget(self._refused.popleft())
        else:
            self._admit(history)

    def _admit(self, history: History) -> None:
        self._admitted.append(history)
        if len(self._admitted) <= self._requests_max:
            return
        oldest = self._admitted.popleft()
        if not oldest.ended:
            # What is forgotten before its end would be told as if it had never been scheduled.
            self._lasting[oldest.request_id] = oldest
            if len(self._lasting) <= self._lasting_max:
                return
            oldest = self._lasting.pop(next(iter(self._lasting)))
        if oldest.steps:
            self._forgotten_until = max(self._forgotten_until, oldest.steps[-1][0])
        self._forget(oldest)

    def _forget(self, history: History) -> None:
        # Its id may have come again, with another history.
        if self._histories.get(history.request_id) is history:
            del self._histories[history.request_id]

    def _add(self, step: Step, now: Instant) -> None:
        history = self._histories.get(step.request_id)
        if history is not None and (len(history.steps) < STEPS_MAX or isinstance(step, End)):
            history.steps.append((now, step))
            if isinstance(step, End):
                self._ended(history)

    def _ended(self, history: History) -> None:
        history.ended = True
        if self._lasting and self._lasting.get(history.request_id) is history:
            del self._lasting[history.request_id]
            self._admit(history)


def _after(events: deque[tuple[Instant, Eject]] | deque[tuple[Instant, str]], since: Instant) -> bool:
    """Whether the last of them came since then."""
    return bool(events) and events[-1][0] >= since


def _has_end(commands: Sequence[Command], request_id: RequestId) -> bool:
    return any(isinstance(each, End) and each.request_id == request_id for each in commands)


def _bounded_end(end: End) -> End:
    return end if len(end.reason) <= REASON_CHARS_MAX else replace(end, reason=_cut(end.reason, REASON_CHARS_MAX))


def _bounded_attempt(ended: AttemptEnded) -> AttemptEnded:
    kept = len(ended.detail) <= REASON_CHARS_MAX
    return ended if kept else replace(ended, detail=_cut(ended.detail, REASON_CHARS_MAX))


def _bounded_ejection(eject: Eject) -> Eject:
    kept = len(eject.reason) <= REASON_CHARS_MAX
    return eject if kept else replace(eject, reason=_cut(eject.reason, REASON_CHARS_MAX))


def _name(text: str | None) -> str | None:
    return text if text is None or len(text) <= NAME_CHARS_MAX else _cut(text, NAME_CHARS_MAX)


def _cut(text: str, length: int) -> str:
    return f"{text[: length - 1]}…"
