"""Divides the time of a request into stages.

The timestamps of a record split the request into consecutive intervals, each of which belongs to one stage. Their
lengths always add up to the total duration. If a timestamp is missing or earlier than the one before it, its interval
is empty and the next one begins where the previous one ended.

If attempts run concurrently, only one of them counts at a time, so that no time is counted twice. The attempt that
responded to the client counts from its dispatch on. Before that, or if no attempt responded, the earlier attempt counts
until it ends. `attempt_times` returns the stages of each attempt, including hedges.
"""

from collections.abc import Iterator
from typing import NamedTuple

from headgate.core.events import AttemptEnding
from headgate.model.stage import Stage
from headgate.ports.records import AttemptRecord, RequestRecord


class StageTime(NamedTuple):
    stage: Stage
    attempt: int | None
    """Attempt that the stage belongs to or leads to; None before the first and after the last attempt."""
    begin: int
    end: int


def stage_times(record: RequestRecord) -> list[StageTime]:
    """Stage intervals in order. A stage may occur several times or not at all."""
    cut = _StageSplitter(record.started_at, record.ended_at)
    cut.add_until(record.head_received_at, Stage.INGRESS)
    cut.add_until(record.authenticated_at, Stage.AUTH)
    cut.add_until(record.body_received_at, Stage.INGRESS)
    cut.add_until(record.queued_at, Stage.CLASSIFY)
    waited_ns, spoke = 0, False
    for attempt, until in _sequential_attempts(record):
        cut.add_queue(attempt.waited_ns - waited_ns, attempt.dispatched_at, attempt.number)
        waited_ns, spoke = attempt.waited_ns, _responded(attempt)
        cut.add_attempt(attempt, until)
    replied_at = record.replied_at or record.ended_at
    if spoke:
        cut.add_until(record.replied_at, Stage.POST_PROCESSING)
    elif record.queued_at:
        cut.add_queue(record.waited_ns - waited_ns, replied_at, None)
    else:
        cut.add_until(replied_at, _rejection_stage(record))
    cut.add_until(record.ended_at, Stage.SETTLE)
    return cut.intervals


def attempt_times(attempt: AttemptRecord, end: int) -> list[StageTime]:
    """Stages of one attempt, up to `end`, the end of its request."""
    cut = _StageSplitter(attempt.dispatched_at, end)
    cut.add_attempt(attempt, attempt.ended_at or end)
    return cut.intervals


def _sequential_attempts(record: RequestRecord) -> Iterator[tuple[AttemptRecord, int]]:
    """Attempts without overlaps, each with the end of its counted time."""
    speaker = next((attempt for attempt in record.attempts if _responded(attempt)), None)
    for attempt in record.attempts:
        until = attempt.ended_at or record.ended_at
        if attempt is speaker:
            # No attempt follows one that responded to the client.
            yield attempt, until
            return
        yield attempt, until if speaker is None else min(until, speaker.dispatched_at)


def _responded(attempt: AttemptRecord) -> bool:
    began = attempt.first_byte_at > 0 and not attempt.buffered
    return began or attempt.ending is AttemptEnding.COMPLETED


def _rejection_stage(record: RequestRecord) -> Stage:
    if not record.authenticated_at:
        return Stage.AUTH
    return Stage.CLASSIFY if record.body_received_at else Stage.INGRESS


class _StageSplitter:
    """Splits a time range into consecutive intervals."""

    def __init__(self, begin: int, end: int) -> None:
        self._cursor = begin
        self._end = end
        self.intervals: list[StageTime] = []

    def add_until(self, moment: int, stage: Stage, attempt: int | None = None) -> None:
        """Assigns the time until `moment` to the stage."""
        moment = min(moment, self._end)
        if moment > self._cursor:
            self.intervals.append(StageTime(stage, attempt, self._cursor, moment))
            self._cursor = moment

    def add_queue(self, waited_ns: int, moment: int, attempt: int | None) -> None:
        """Assigns the first `waited_ns` to QUEUE and the rest until `moment` to ROUTE."""
        self.add_until(min(self._cursor + waited_ns, moment), Stage.QUEUE, attempt)
        self.add_until(moment, Stage.ROUTE, attempt)

    def add_attempt(self, attempt: AttemptRecord, until: int) -> None:
        number, stage = attempt.number, Stage.CONNECT
        for moment, ends, begins in (
            (attempt.sent_at, Stage.CONNECT, Stage.PREFILL),
            (attempt.first_byte_at, Stage.PREFILL, Stage.DECODE),
            (attempt.last_byte_at, Stage.DECODE, Stage.DECODE),
        ):
            if moment:
                self.add_until(min(moment, until), ends, number)
                stage = begins
        if attempt.ending is not AttemptEnding.COMPLETED:
            self.add_until(until, stage, number)
