"""How long did each stage of a request take?

The moments of a record cut its life into pieces, each of which belongs to one stage. They lie end to end: their lengths
add up to the whole, whatever of it never happened and whatever came in another order than usual. A moment that is
missing, or before the one it should follow, takes no time; what it would have ended goes on to the next that there is.

Of attempts that run at the same time only one can count, or time would count twice: the one that spoke to the caller
from when it was ordered, and before that, or where none spoke, the earlier one for as long as it ran. What else a hedge
did is beside that (`attempt_times`).
"""

from collections.abc import Iterator
from typing import NamedTuple

from headgate.core.events import AttemptEnding
from headgate.model.stage import Stage
from headgate.ports.records import AttemptRecord, RequestRecord


class StageTime(NamedTuple):
    stage: Stage
    attempt: int | None
    """The attempt that it is a part of, or that it led to; None for what is before or after all of them."""
    begin: int
    end: int


def stage_times(record: RequestRecord) -> list[StageTime]:
    """In their order; of some stages several, of others none."""
    cut = _Cut(record.started_at, record.ended_at)
    cut.to(record.headed_at, Stage.INGRESS)
    cut.to(record.authorised_at, Stage.AUTH)
    cut.to(record.received_at, Stage.INGRESS)
    cut.to(record.queued_at, Stage.CLASSIFY)
    waited_ns, spoke = 0, False
    for attempt, until in _in_turn(record):
        cut.through_queue(attempt.waited_ns - waited_ns, attempt.ordered_at, attempt.number)
        waited_ns, spoke = attempt.waited_ns, _spoke(attempt)
        cut.through_attempt(attempt, until)
    replied_at = record.replied_at or record.ended_at
    if spoke:
        cut.to(record.replied_at, Stage.POST_PROCESSING)
    elif record.queued_at:
        cut.through_queue(record.waited_ns - waited_ns, replied_at, None)
    else:
        cut.to(replied_at, _turned_away_in(record))
    cut.to(record.ended_at, Stage.SETTLE)
    return cut.pieces


def attempt_times(attempt: AttemptRecord, end: int) -> list[StageTime]:
    """The stages of one attempt by itself, up to this end of its request at most."""
    cut = _Cut(attempt.ordered_at, end)
    cut.through_attempt(attempt, attempt.ended_at or end)
    return cut.pieces


def _in_turn(record: RequestRecord) -> Iterator[tuple[AttemptRecord, int]]:
    """The attempts that the request went through one after another, each with until when it counts."""
    speaker = next((attempt for attempt in record.attempts if _spoke(attempt)), None)
    for attempt in record.attempts:
        until = attempt.ended_at or record.ended_at
        if attempt is speaker:
            # Nothing is tried after that.
            yield attempt, until
            return
        yield attempt, until if speaker is None else min(until, speaker.ordered_at)


def _spoke(attempt: AttemptRecord) -> bool:
    began = attempt.first_byte_at > 0 and not attempt.held_back
    return began or attempt.ending is AttemptEnding.COMPLETED


def _turned_away_in(record: RequestRecord) -> Stage:
    if not record.authorised_at:
        return Stage.AUTH
    return Stage.CLASSIFY if record.received_at else Stage.INGRESS


class _Cut:
    """Cuts a length of time into pieces, from its beginning on."""

    def __init__(self, begin: int, end: int) -> None:
        self._at = begin
        self._end = end
        self.pieces: list[StageTime] = []

    def to(self, moment: int, stage: Stage, attempt: int | None = None) -> None:
        """Up to this moment it was this stage."""
        moment = min(moment, self._end)
        if moment > self._at:
            self.pieces.append(StageTime(stage, attempt, self._at, moment))
            self._at = moment

    def through_queue(self, waited_ns: int, moment: int, attempt: int | None) -> None:
        """Of the time up to this moment so much was in the queue, and the rest on the way to it and back."""
        self.to(min(self._at + waited_ns, moment), Stage.QUEUE, attempt)
        self.to(moment, Stage.ROUTE, attempt)

    def through_attempt(self, attempt: AttemptRecord, until: int) -> None:
        number, stage = attempt.number, Stage.CONNECT
        for moment, ends, begins in (
            (attempt.connected_at, Stage.CONNECT, Stage.PREFILL),
            (attempt.first_byte_at, Stage.PREFILL, Stage.DECODE),
            (attempt.last_byte_at, Stage.DECODE, Stage.DECODE),
        ):
            if moment:
                self.to(min(moment, until), ends, number)
                stage = begins
        if attempt.ending is not AttemptEnding.COMPLETED:
            self.to(until, stage, number)
