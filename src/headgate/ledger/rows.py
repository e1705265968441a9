"""In which shape does a row stand in memory, in the spool and in the database?

In the spool a row is the tuple of its fields, in their order; those of one request are one record, so that they are
written together or not at all. In the database text has no NUL and numbers have bounds, so both are seen to when a row
is made (`bounded`, `whole`): a row that the database refuses would come back for ever.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from operator import attrgetter
from typing import Any, Final

import msgspec

from headgate.model.money import PAYERS, Cause, NanoUsd
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, Instant
from headgate.model.usage import UsageSource
from headgate.ports.ledger import EndpointTimeRow, UsageRow

TEXT_CHARS_MAX: Final = 200
"""Of what a caller or an engine names."""
COUNT_MAX: Final = 2**31 - 1
AMOUNT_MAX: Final = 2**63 - 1
DAY_NS: Final = 86_400 * SECOND

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY: Final = date(1970, 1, 1)

USAGE_COLUMNS: Final = tuple("class" if each.name == "service_class" else each.name for each in fields(UsageRow))
TIME_COLUMNS: Final = tuple(each.name for each in fields(EndpointTimeRow))
_usage_fields: Final = attrgetter(*(each.name for each in fields(UsageRow)))
_time_fields: Final = attrgetter(*TIME_COLUMNS)

Key = tuple[datetime, str, int, int]
"""What names a usage row: arrival, request, attempt, correction."""


SentNote = tuple[Instant, str, int, str, str, str, str, str, str, str, bool, int, int, int, tuple[tuple[str, str], ...]]
"""What is known of an attempt when it is sent: arrival, request, number, tenant, class, model, the one that serves it,
pool, endpoint, api, stream, prompt tokens as estimated, queue µs, level, metadata."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What goes into the database together."""

    usage: tuple[UsageRow, ...] = ()
    times: tuple[EndpointTimeRow, ...] = ()

    def __len__(self) -> int:
        return len(self.usage) + len(self.times)


# Bounds


def bounded(text: str) -> str:
    """As the database takes it."""
    if len(text) > TEXT_CHARS_MAX:
        text = f"{text[: TEXT_CHARS_MAX - 1]}…"
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "�").encode("utf-8", "replace").decode()


def whole(count: int) -> int:
    """Of tokens: an engine may claim anything."""
    if 0 <= count <= COUNT_MAX:
        return count
    return 0 if count < 0 else COUNT_MAX


# Of the database


def moment(at: Instant) -> datetime:
    return _EPOCH + timedelta(microseconds=at // 1_000)


def day_of(at: Instant) -> date:
    return _FIRST_DAY + timedelta(days=at // DAY_NS)


def days_of(rows: Iterable[UsageRow]) -> set[date]:
    return {_FIRST_DAY + timedelta(days=number) for number in {row.at // DAY_NS for row in rows}}


def time_record(row: EndpointTimeRow) -> tuple[object, ...]:
    return (moment(row.at), *_time_fields(row)[1:])


def key_of(row: UsageRow) -> Key:
    return moment(row.at), row.request, row.attempt, row.correction


MODEL_UNKNOWN: Final = (
    *(Outcome.INVALID.value, Outcome.FORBIDDEN.value, Outcome.UNAUTHORIZED.value, Outcome.UNVERIFIED.value),
    Outcome.MODEL_NOT_FOUND.value,
)
"""Decided before the model is known to exist, as is everything that has no class. Sums then have no model."""
SUM_KEYS: Final = ("day", "tenant", "class", "model", "pool", "payer", "cause", "outcome")
SUM_AMOUNTS: Final = (
    *("requests", "attempts", "tokens_in", "tokens_cached", "tokens_out", "tokens_reasoning", "engine_us"),
    *("input_nano_usd", "output_nano_usd", "overhead_nano_usd"),
)


class Sums:
    """What rows add to each day."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums: dict[tuple[Any, ...], list[int]] = {}

    def add(self, rows: Iterable[UsageRow]) -> None:
        sums = self._sums
        for row in rows:
            # Callers may name as many models as they like that do not exist: those would be as many sums.
            unknown = not row.pool and (not row.service_class or row.outcome in MODEL_UNKNOWN)
            model = "" if unknown else row.model
            key = (row.at // DAY_NS, row.tenant, row.service_class, model, row.pool, row.payer, row.cause, row.outcome)
            found = sums.get(key)
            if found is None:
                found = sums[key] = [0] * len(SUM_AMOUNTS)
            if row.correction == 0:
                found[0] += row.attempt <= 1
                found[1] += row.attempt >= 1
            found[2] += row.tokens_in
            found[3] += row.tokens_cached
            found[4] += row.tokens_out
            found[5] += row.tokens_reasoning
            found[6] += row.input_us + row.output_us + row.overhead_us
            found[7] += row.input_nano_usd
            found[8] += row.output_nano_usd
            found[9] += row.overhead_nano_usd

    def records(self) -> list[tuple[object, ...]]:
        """Sorted: writers that take locks in the same order do not wait in a circle."""
        return [(_FIRST_DAY + timedelta(days=key[0]), *key[1:], *self._sums[key]) for key in sorted(self._sums)]


# Of the spool

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(tuple[int, list[tuple[Any, ...]]])
_USAGE, _TIME = 0, 1


def packed_usage(rows: Sequence[UsageRow]) -> bytes:
    return _ENCODER.encode((_USAGE, [_usage_fields(row) for row in rows]))


def packed_times(rows: Sequence[EndpointTimeRow]) -> bytes:
    return _ENCODER.encode((_TIME, [_time_fields(row) for row in rows]))


_PAIR: Final = 0x92
"""How a list of two begins, and below how one of few and one of more do."""
_FEW, _MORE = 0x90, 0xDC


def rows_in(record: bytes) -> int:
    """How many rows a record has, by its first bytes alone; 0 where it is none."""
    if len(record) < 3 or record[0] != _PAIR or record[1] not in (_USAGE, _TIME):
        return 0
    if record[2] == _MORE:
        return int.from_bytes(record[3:5], "big")
    return record[2] - _FEW if _FEW <= record[2] < _FEW + 16 else 0


def keys_in(record: bytes) -> list[tuple[str, int]]:
    """Request and attempt of each usage row. Raises `ValueError` for what is no record."""
    kind, rows = _DECODER.decode(record)
    return [(values[1], values[2]) for values in rows if len(values) > 2] if kind == _USAGE else []


def unpacked(record: bytes) -> Batch:
    """Raises `ValueError` for what is no record of this version."""
    kind, rows = _DECODER.decode(record)
    try:
        if kind == _USAGE:
            return Batch(usage=tuple(_usage_row(values) for values in rows))
        if kind == _TIME:
            return Batch(times=tuple(EndpointTimeRow(*values) for values in rows))
    except TypeError as error:
        raise ValueError(str(error)) from None
    raise ValueError(f"a record of kind {kind}")


def _usage_row(values: tuple[Any, ...]) -> UsageRow:
    *others, metadata = values
    return UsageRow(*others, metadata=tuple((name, value) for name, value in metadata))


# Of those that were under way

_NOTE_DECODER: Final = msgspec.msgpack.Decoder(SentNote)


def packed_note(note: SentNote) -> bytes:
    return _ENCODER.encode(note)


def row_of_note(record: bytes) -> UsageRow:
    """Nobody knows how it ended: the process that had it was killed. The platform pays. Raises `ValueError`."""
    at, request, attempt, tenant, *names, api, stream, tokens, queue_us, level, metadata = _NOTE_DECODER.decode(record)
    service_class, model, served_model, pool, endpoint = names
    nothing = NanoUsd(0)
    return UsageRow(
        at=Instant(at),
        request=request,
        attempt=attempt,
        correction=0,
        tenant=tenant,
        service_class=service_class,
        model=model,
        served_model=served_model,
        pool=pool,
        endpoint=endpoint,
        api=api,
        stream=stream,
        tokens_in=tokens,
        tokens_cached=0,
        tokens_out=0,
        tokens_reasoning=0,
        usage_source=UsageSource.ESTIMATED.value,
        queue_us=queue_us,
        ttft_us=None,
        duration_us=0,
        input_us=0,
        output_us=0,
        overhead_us=0,
        outcome="",
        ending="",
        cause=Cause.LEAVING.value,
        payer=PAYERS[Cause.LEAVING].value,
        level=level,
        input_nano_usd=nothing,
        output_nano_usd=nothing,
        overhead_nano_usd=nothing,
        reserved_nano_usd=nothing,
        metadata=metadata,
    )
