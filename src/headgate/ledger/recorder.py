"""Observer that turns this process's requests into ledger rows.

It records the tenant, the times at which each attempt was sent, produced its first token and ended, and the outcome of
the request. The rows are created when the request and all its attempts have ended, because an aborted attempt reports
its tokens after its request has ended. The `End` command contains the engine time and cost of each attempt as bills.

Before an attempt is sent, a journal entry is written, and the request waits for it (`noted`). The entry is erased when
the attempt's rows have been added. If the process is killed in between, the next process turns the entry into a row, so
that every attempt that was sent has one.

Token counts come from the engine. If it reported none, they are estimated from the size of the prompt and from the
number of tokens relayed, and the row is marked as estimated.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, AttemptsProgressed, Event, FirstToken, RequestArrived
from headgate.ledger.rows import COUNT_MAX, JournalEntry, clamp_count, clamp_text
from headgate.ledger.spool.acknowledgement import PendingEntry
from headgate.model.money import PAYER_BY_CAUSE, Bill, BillCause, NanoUsd
from headgate.model.ticket import Ticket
from headgate.model.units import BYTES_PER_TOKEN, Duration, Instant, RequestId
from headgate.model.usage import Usage, UsageSource
from headgate.ports.ledger import Ledger, UsageRow

REQUESTS_MAX: Final = 262_144
"""Maximum number of open requests. A process never has this many. If the limit is reached, the oldest request is
written in its current state.
"""
_NO_USAGE: Final = Usage(0, 0, 0, UsageSource.ESTIMATED)
_ZERO_USD: Final = NanoUsd(0)
_NO_BILL: Final = Bill(0, BillCause.SHUTDOWN, Duration(0), Duration(0), Duration(0), _ZERO_USD, _ZERO_USD, _ZERO_USD)
_PROMPT_COMPUTED_ENDINGS: Final = (AttemptEnding.COMPLETED, AttemptEnding.ABORTED, AttemptEnding.TIMEOUT)
_TEXTS_MAX: Final = 4_096
_JOURNAL_FULL: Final = "the journal is full"
_US: Final = 1_000
"""Nanoseconds per microsecond."""


class InflightJournal(Protocol):
    """Journal of attempts in flight, for recovery if the process is killed."""

    def add_entry(self, sent: JournalEntry) -> PendingEntry | None:
        """Queues an entry, which is on disk once it has been acknowledged. Returns None if the journal is full."""
        ...

    def erase(self, slot: int) -> None:
        """Erases an entry once the rows for its attempt have been added."""
        ...

    @property
    def write_problem(self) -> str | None:
        """Why entries written now would not survive the process; None if they would."""
        ...


class _Attempt:
    __slots__ = (
        *("dispatch", "ended_at", "ending", "endpoint", "first_token_at", "journal_entry", "sent_at", "served_model"),
        *("tokens", "usage"),
    )

    def __init__(self, dispatch: Dispatch, endpoint: str, served_model: str, now: Instant) -> None:
        self.dispatch = dispatch
        self.endpoint, self.served_model = endpoint, served_model
        self.journal_entry: PendingEntry | None = None
        self.sent_at = now
        self.first_token_at: Instant | None = None
        self.tokens = 0
        """Output tokens according to the progress reports."""
        self.ended_at: Instant | None = None
        self.ending = ""
        self.usage: Usage | None = None


class _OpenRequest:
    __slots__ = ("arrived_at", "attempts", "end", "ended_at", "model", "running", "tenant", "ticket")

    def __init__(self, ticket: Ticket, tenant: str, model: str, now: Instant) -> None:
        self.ticket = ticket
        self.tenant, self.model = tenant, model
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


class _ClampedTexts(dict[str, str]):
    """Names of tenants, models and endpoints as the database accepts them."""

    def __missing__(self, text: str) -> str:
        if len(self) >= _TEXTS_MAX:
            # Clients can send any number of model names.
            self.clear()
        clamped = self[text] = clamp_text(text)
        return clamped


class UsageRecorder:
    """Observer that writes ledger rows."""

    def __init__(
        self,
        ledger: Ledger,
        journal: InflightJournal | None = None,
        *,
        reject_unrecorded: bool = False,
        requests_max: int = REQUESTS_MAX,
    ) -> None:
        """With `reject_unrecorded`, an attempt is not sent if its record would not survive the process."""
        self._reject_unrecorded = reject_unrecorded
        self._ledger = ledger
        self._journal = journal
        self._requests_max = requests_max
        self._open: dict[RequestId, _OpenRequest] = {}
        self._texts = _ClampedTexts()
        self.unjournaled_attempts = 0
        """Number of attempts that were sent without a journal entry on disk."""

    @property
    def open_requests(self) -> int:
        return len(self._open)

    async def wait_journaled(self, request_id: RequestId, attempt: int) -> str | None:
        found = self._attempt(request_id, attempt)
        if found is None or self._journal is None:
            # Either the request has ended in the meantime, or there is no journal.
            return None
        is_noted = False
        if found.journal_entry is not None:
            acknowledgement = found.journal_entry.acknowledgement
            if acknowledgement.written is None:
                await acknowledgement.waiter()
            is_noted = acknowledgement.written is True
        why = self._journal.write_problem if self._reject_unrecorded or not is_noted else None
        if is_noted and why is None:
            return None
        if self._reject_unrecorded:
            return f"the ledger cannot record this request: {why or _JOURNAL_FULL}"
        self.unjournaled_attempts += 1
        return None

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        # This runs for every event, so frequent events come first, and types are compared instead of using
        # `isinstance`, which takes several times as long for each type that does not match.
        if type(event) is AttemptsProgressed:
            for report in event.attempts:
                if (attempt := self._attempt(report.request_id, report.attempt)) is not None:
                    attempt.tokens += report.tokens
        elif type(event) is RequestArrived:
            self._arrived(event.ticket, now)
        elif type(event) is AttemptEnded:
            self._attempt_ended(event, now)
        elif type(event) is FirstToken and (attempt := self._attempt(event.request_id, event.attempt)) is not None:
            attempt.first_token_at = now if attempt.first_token_at is None else attempt.first_token_at
        for command in commands:
            if type(command) is End:
                self._ended(command, now)
            elif type(command) is Dispatch:
                self._sent(command, now)

    def close(self) -> None:
        """Writes the requests that have ended, even if some of their attempts are still open. No more events will
        arrive for them.
        """
        for request_id in [name for name, found in self._open.items() if found.end is not None]:
            self._write(request_id)

    def _attempt(self, request_id: RequestId, number: int) -> _Attempt | None:
        found = self._open.get(request_id)
        return None if found is None else found.attempt(number)

    def _arrived(self, ticket: Ticket, now: Instant) -> None:
        texts = self._texts
        self._open[ticket.request_id] = _OpenRequest(ticket, texts[ticket.tenant], texts[ticket.model], now)
        if len(self._open) > self._requests_max:
            self._write(next(iter(self._open)))

    def _sent(self, dispatch: Dispatch, now: Instant) -> None:
        found = self._open.get(dispatch.request_id)
        # When another scheduler takes over, it may repeat a command.
        if found is not None and (not found.attempts or found.attempt(dispatch.attempt) is None):
            texts = self._texts
            served = dispatch.adapter or dispatch.model
            model = texts[served] if served else found.model
            attempt = _Attempt(dispatch, texts[dispatch.endpoint_id], model, now)
            found.attempts.append(attempt)
            found.running += 1
            if self._journal is not None:
                attempt.journal_entry = self._journal.add_entry(_journal_entry(found, attempt))

    def _attempt_ended(self, event: AttemptEnded, now: Instant) -> None:
        found = self._open.get(event.request_id)
        attempt = None if found is None else found.attempt(event.attempt)
        if found is not None and attempt is not None and attempt.ended_at is None:
            attempt.ended_at, attempt.ending, attempt.usage = now, event.ending, event.usage
            if event.first_token and attempt.first_token_at is None:
                attempt.first_token_at = now
            found.running -= 1
            if found.end is not None and not found.running:
                self._write(event.request_id)

    def _ended(self, end: End, now: Instant) -> None:
        found = self._open.get(end.request_id)
        if found is not None and found.end is None:
            found.end, found.ended_at = end, now
            if not found.running:
                self._write(end.request_id)

    def _write(self, request_id: RequestId) -> None:
        request = self._open.pop(request_id)
        if request.attempts or not request.ticket.mirror_route:
            # A copy that was not sent used nothing, and it is no request of a caller.
            self._ledger.add(_rows(request))
        if self._journal is not None:
            for attempt in request.attempts:
                if attempt.journal_entry is not None:
                    self._journal.erase(attempt.journal_entry.slot)


def _journal_entry(request: _OpenRequest, attempt: _Attempt) -> JournalEntry:
    ticket, dispatch = request.ticket, attempt.dispatch
    return (
        request.arrived_at,
        ticket.request_id,
        dispatch.attempt,
        request.tenant,
        dispatch.service_class,
        request.model,
        attempt.served_model,
        dispatch.pool,
        attempt.endpoint,
        ticket.api,
        ticket.stream,
        clamp_count(ticket.prompt_bytes // BYTES_PER_TOKEN),
        dispatch.waited_ns // _US,
        dispatch.level,
        ticket.metadata,
    )


def _rows(request: _OpenRequest) -> list[UsageRow]:
    bills = None if request.end is None else request.end.bills
    attempts = request.attempts
    if bills and len(attempts) == len(bills) == 1 and attempts[0].dispatch.attempt == bills[0].attempt == 1:
        # Fast path for nearly all requests.
        return [_row(request, attempts[0], bills[0], last=True)]
    found = {bill.attempt: bill for bill in bills or ()}
    attempts = sorted(attempts, key=lambda each: each.dispatch.attempt)
    rows = [_row(request, each, found.get(each.dispatch.attempt), last=each is attempts[-1]) for each in attempts]
    if not attempts or attempts[0].dispatch.attempt != 1:
        # Requests are counted by their row with attempt 0 or 1, so each request needs one.
        rows.insert(0, _unsent_row(request, last=not attempts))
    return rows


def _row(request: _OpenRequest, attempt: _Attempt, bill: Bill | None, *, last: bool) -> UsageRow:
    ticket, end, dispatch = request.ticket, request.end, attempt.dispatch
    usage = attempt.usage or _estimated(ticket, attempt)
    prompt_tokens, cached_tokens = usage.prompt_tokens, usage.cached_tokens
    output_tokens, reasoning_tokens = usage.output_tokens, usage.reasoning_tokens
    if not (
        0 <= prompt_tokens <= COUNT_MAX
        and 0 <= cached_tokens <= COUNT_MAX
        and 0 <= output_tokens <= COUNT_MAX
        and 0 <= reasoning_tokens <= COUNT_MAX
    ):
        prompt_tokens, cached_tokens = clamp_count(prompt_tokens), clamp_count(cached_tokens)
        output_tokens, reasoning_tokens = clamp_count(output_tokens), clamp_count(reasoning_tokens)
    ended_at = attempt.ended_at or request.ended_at
    first_at = attempt.first_token_at if ticket.stream else None
    billed = _NO_BILL if bill is None else bill
    values = (
        request.arrived_at,
        ticket.request_id,
        dispatch.attempt,
        0,
        request.tenant,
        dispatch.service_class,
        request.model,
        attempt.served_model,
        dispatch.pool,
        attempt.endpoint,
        ticket.api,
        ticket.stream,
        prompt_tokens,
        cached_tokens,
        output_tokens,
        reasoning_tokens,
        usage.source,
        dispatch.waited_ns // _US,
        None if first_at is None else (first_at - request.arrived_at) // _US,
        (ended_at - attempt.sent_at) // _US if ended_at > attempt.sent_at else 0,
        billed.input_ns // _US,
        billed.output_ns // _US,
        billed.overhead_ns // _US,
        "" if end is None else end.outcome,
        attempt.ending,
        "" if bill is None else bill.cause,
        "" if bill is None else PAYER_BY_CAUSE[bill.cause],
        dispatch.level,
        billed.input_nano_usd,
        billed.output_nano_usd,
        billed.overhead_nano_usd,
        end.reserved if end is not None and last else _ZERO_USD,
        ticket.metadata,
    )
    # The generated constructor takes several times as long for this many fields.
    return UsageRow._make(values)


def _estimated(ticket: Ticket, attempt: _Attempt) -> Usage:
    """Estimated usage, used if the engine reported none. Zero for an attempt that failed before its first token."""
    if attempt.first_token_at is None and attempt.ending not in _PROMPT_COMPUTED_ENDINGS:
        return _NO_USAGE
    return Usage(ticket.prompt_bytes // BYTES_PER_TOKEN, attempt.tokens, 0, UsageSource.ESTIMATED)


def _unsent_row(request: _OpenRequest, *, last: bool) -> UsageRow:
    ticket, end = request.ticket, request.end
    return UsageRow(
        at=request.arrived_at,
        request=ticket.request_id,
        attempt=0,
        correction=0,
        tenant=request.tenant,
        service_class=(end.service_class if end is not None else None) or "",
        model=request.model,
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
        input_nano_usd=_ZERO_USD,
        output_nano_usd=_ZERO_USD,
        overhead_nano_usd=_ZERO_USD,
        reserved_nano_usd=end.reserved if end is not None and last else _ZERO_USD,
        metadata=ticket.metadata,
    )
