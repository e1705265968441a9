"""Observer that turns this process's requests into ledger rows.

It records the caller, when each attempt was sent, gave its first token and ended, and how the request ended. The rows
are made when the request and all its attempts have ended, since a stopped attempt reports its tokens after the end of
its request. The engine time and cost of each attempt come with the end of the request, as bills.

Before an attempt is sent, a note of it is written; the request waits for that (`noted`). The note is erased when the
attempt's rows have been added. If the process is killed in between, the next process turns the note into a row, so
every attempt that was sent has one.

Tokens are those that the engine reported. If it reported none, they are estimated, the prompt from its bytes and the
answer from what was relayed, and the row is marked as estimated.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, Event, FirstToken, Progressed, RequestArrived
from headgate.ledger.rows import SentNote, bounded, whole
from headgate.ledger.spool.acknowledgement import Note
from headgate.model.money import PAYERS, Bill, Cause, NanoUsd
from headgate.model.ticket import Ticket
from headgate.model.units import BYTES_PER_TOKEN, Duration, Instant, RequestId
from headgate.model.usage import Usage, UsageSource
from headgate.ports.ledger import Ledger, UsageRow

REQUESTS_MAX: Final = 262_144
"""More than one process can hold at once. Beyond it the oldest is written as it stands."""
_UNTOLD: Final = Usage(0, 0, 0, UsageSource.ESTIMATED)
_NOTHING: Final = NanoUsd(0)
_NO_BILL: Final = Bill(0, Cause.LEAVING, Duration(0), Duration(0), Duration(0), _NOTHING, _NOTHING, _NOTHING)
_STOPPED: Final = (AttemptEnding.COMPLETED, AttemptEnding.ABORTED, AttemptEnding.SILENT)
_NO_ROOM: Final = "its journal is full"
_US: Final = 1_000
"""Nanoseconds."""


class Notes(Protocol):
    """Where it stands what is under way, for whoever comes after a process that was killed."""

    def note(self, sent: SentNote) -> Note | None:
        """Queues a note; it is on disk once it is acknowledged. None if there is no room for it."""
        ...

    def erase(self, slot: int) -> None:
        """Its rows have been added."""
        ...

    @property
    def unrecordable(self) -> str | None:
        """Why notes written now would not survive the end of the process; None if they would."""
        ...


class _Attempt:
    __slots__ = ("dispatch", "ended_at", "ending", "first_at", "note", "sent_at", "tokens", "usage")

    def __init__(self, dispatch: Dispatch, now: Instant) -> None:
        self.dispatch = dispatch
        self.note: Note | None = None
        self.sent_at = now
        self.first_at: Instant | None = None
        self.tokens = 0
        """As far as progress was reported."""
        self.ended_at: Instant | None = None
        self.ending = ""
        self.usage: Usage | None = None


class _Open:
    __slots__ = ("arrived_at", "attempts", "end", "ended_at", "running", "ticket")

    def __init__(self, ticket: Ticket, now: Instant) -> None:
        self.ticket = ticket
        self.arrived_at = now
        self.attempts: list[_Attempt] = []
        self.running = 0
        self.end: End | None = None
        self.ended_at = now

    def attempt(self, number: int) -> _Attempt | None:
        for each in self.attempts:
            if each.dispatch.attempt == number:
                return each
        return None


class Recorder:
    """The observer."""

    def __init__(
        self,
        ledger: Ledger,
        notes: Notes | None = None,
        *,
        refuses: bool = False,
        requests_max: int = REQUESTS_MAX,
    ) -> None:
        """With `refuses`, an attempt is not sent if its record would not survive the end of the process."""
        self._refuses = refuses
        self._ledger = ledger
        self._notes = notes
        self._requests_max = requests_max
        self._open: dict[RequestId, _Open] = {}
        self.unrecorded = 0
        """Attempts that were sent without a note on disk."""

    @property
    def open_requests(self) -> int:
        return len(self._open)

    async def noted(self, request_id: RequestId, attempt: int) -> str | None:
        found = self._attempt(request_id, attempt)
        if found is None or self._notes is None:
            # The request has ended in the meantime.
            return None
        is_noted = found.note is not None and await found.note.acknowledgement.wait()
        why = self._notes.unrecordable if self._refuses or not is_noted else None
        if is_noted and why is None:
            return None
        if self._refuses:
            return f"the ledger cannot record this request: {why or _NO_ROOM}"
        self.unrecorded += 1
        return None

    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        # In the order of how often they come; this is asked of every event.
        if isinstance(event, Progressed):
            for report in event.attempts:
                if (attempt := self._attempt(report.request_id, report.attempt)) is not None:
                    attempt.tokens += report.tokens
        elif isinstance(event, RequestArrived):
            self._arrived(event.ticket, now)
        elif isinstance(event, AttemptEnded):
            self._attempt_ended(event, now)
        elif isinstance(event, FirstToken) and (attempt := self._attempt(event.request_id, event.attempt)) is not None:
            attempt.first_at = now if attempt.first_at is None else attempt.first_at
        for command in commands:
            if isinstance(command, End):
                self._ended(command, now)
            elif isinstance(command, Dispatch):
                self._sent(command, now)
        if isinstance(event, AttemptEnded):
            self._write_if_over(event.request_id)

    def close(self) -> None:
        """Nobody will tell any more how what is open ends: what has ended is written as it stands."""
        for request_id in [name for name, found in self._open.items() if found.end is not None]:
            self._write(request_id)

    def _attempt(self, request_id: RequestId, number: int) -> _Attempt | None:
        found = self._open.get(request_id)
        return None if found is None else found.attempt(number)

    def _arrived(self, ticket: Ticket, now: Instant) -> None:
        self._open[ticket.request_id] = _Open(ticket, now)
        if len(self._open) > self._requests_max:
            self._write(next(iter(self._open)))

    def _sent(self, dispatch: Dispatch, now: Instant) -> None:
        found = self._open.get(dispatch.request_id)
        # A scheduler that takes over may order again what has been ordered.
        if found is not None and found.attempt(dispatch.attempt) is None:
            attempt = _Attempt(dispatch, now)
            found.attempts.append(attempt)
            found.running += 1
            if self._notes is not None:
                attempt.note = self._notes.note(_note(found, dispatch))

    def _attempt_ended(self, event: AttemptEnded, now: Instant) -> None:
        found = self._open.get(event.request_id)
        attempt = None if found is None else found.attempt(event.attempt)
        if found is not None and attempt is not None and attempt.ended_at is None:
            attempt.ended_at, attempt.ending, attempt.usage = now, event.ending, event.usage
            found.running -= 1

    def _ended(self, end: End, now: Instant) -> None:
        found = self._open.get(end.request_id)
        if found is not None and found.end is None:
            found.end, found.ended_at = end, now
            self._write_if_over(end.request_id)

    def _write_if_over(self, request_id: RequestId) -> None:
        found = self._open.get(request_id)
        if found is not None and found.end is not None and not found.running:
            self._write(request_id)

    def _write(self, request_id: RequestId) -> None:
        request = self._open.pop(request_id)
        self._ledger.add(_rows(request))
        if self._notes is not None:
            for attempt in request.attempts:
                if attempt.note is not None:
                    self._notes.erase(attempt.note.slot)


def _note(request: _Open, dispatch: Dispatch) -> SentNote:
    ticket = request.ticket
    return (
        request.arrived_at,
        ticket.request_id,
        dispatch.attempt,
        bounded(ticket.tenant),
        dispatch.service_class,
        bounded(ticket.model),
        bounded(dispatch.model or ticket.model),
        dispatch.pool,
        bounded(dispatch.endpoint_id),
        ticket.api,
        ticket.stream,
        whole(ticket.prompt_bytes // BYTES_PER_TOKEN),
        dispatch.waited_ns // _US,
        dispatch.level,
        ticket.metadata,
    )


def _rows(request: _Open) -> list[UsageRow]:
    bills = [] if request.end is None else [*request.end.bills]
    attempts = request.attempts
    if len(attempts) == len(bills) == 1 and attempts[0].dispatch.attempt == bills[0].attempt == 1:
        # Nearly all are like this.
        return [_row(request, attempts[0], bills[0], last=True)]
    found = {bill.attempt: bill for bill in bills}
    attempts = sorted(attempts, key=lambda each: each.dispatch.attempt)
    rows = [_row(request, each, found.get(each.dispatch.attempt), last=each is attempts[-1]) for each in attempts]
    if not attempts or attempts[0].dispatch.attempt != 1:
        # Requests are counted by the row whose attempt is 0 or 1, so there is one.
        rows.insert(0, _never_sent(request, last=not attempts))
    return rows


def _row(request: _Open, attempt: _Attempt, bill: Bill | None, *, last: bool) -> UsageRow:
    ticket, end, dispatch = request.ticket, request.end, attempt.dispatch
    usage = attempt.usage or _estimated(ticket, attempt)
    ended_at = attempt.ended_at or request.ended_at
    first_at = attempt.first_at if ticket.stream else None
    billed = _NO_BILL if bill is None else bill
    return UsageRow(
        request.arrived_at,
        ticket.request_id,
        dispatch.attempt,
        0,
        bounded(ticket.tenant),
        dispatch.service_class,
        bounded(ticket.model),
        bounded(dispatch.model or ticket.model),
        dispatch.pool,
        bounded(dispatch.endpoint_id),
        ticket.api,
        ticket.stream,
        whole(usage.prompt_tokens),
        whole(usage.cached_tokens),
        whole(usage.output_tokens),
        whole(usage.reasoning_tokens),
        usage.source,
        dispatch.waited_ns // _US,
        None if first_at is None else (first_at - request.arrived_at) // _US,
        max(0, ended_at - attempt.sent_at) // _US,
        billed.input_ns // _US,
        billed.output_ns // _US,
        billed.overhead_ns // _US,
        "" if end is None else end.outcome,
        attempt.ending,
        "" if bill is None else bill.cause,
        "" if bill is None else PAYERS[bill.cause],
        dispatch.level,
        billed.input,
        billed.output,
        billed.overhead,
        end.reserved if end is not None and last else _NOTHING,
        ticket.metadata,
    )


def _estimated(ticket: Ticket, attempt: _Attempt) -> Usage:
    """One that was stopped before it spoke has probably computed its prompt; one that failed before has not."""
    if attempt.first_at is None and attempt.ending not in _STOPPED:
        return _UNTOLD
    return Usage(ticket.prompt_bytes // BYTES_PER_TOKEN, attempt.tokens, 0, UsageSource.ESTIMATED)


def _never_sent(request: _Open, *, last: bool) -> UsageRow:
    ticket, end = request.ticket, request.end
    return UsageRow(
        at=request.arrived_at,
        request=ticket.request_id,
        attempt=0,
        correction=0,
        tenant=bounded(ticket.tenant),
        service_class=(end.service_class if end is not None else None) or "",
        model=bounded(ticket.model),
        served_model="",
        pool="",
        endpoint="",
        api=ticket.api,
        stream=ticket.stream,
        tokens_in=0,
        tokens_cached=0,
        tokens_out=0,
        tokens_reasoning=0,
        usage_source="",
        queue_us=0 if end is None else end.waited_ns // _US,
        ttft_us=None,
        duration_us=max(0, request.ended_at - request.arrived_at) // _US,
        input_us=0,
        output_us=0,
        overhead_us=0,
        outcome="" if end is None else end.outcome,
        ending="",
        cause="",
        payer="",
        level=0,
        input_nano_usd=_NOTHING,
        output_nano_usd=_NOTHING,
        overhead_nano_usd=_NOTHING,
        reserved_nano_usd=end.reserved if end is not None and last else _NOTHING,
        metadata=ticket.metadata,
    )
