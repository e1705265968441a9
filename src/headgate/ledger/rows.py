"""Formats of ledger rows in memory, in the spool and in the database.

In the spool, a row is a tuple of its fields. All rows for a request form one record, so that they are written
atomically. PostgreSQL text cannot contain NUL, and its numbers have limits. `clamp_text` and `clamp_count` enforce both
when a row is created, because a row that the database rejects would be retried forever.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from operator import attrgetter
from typing import Any, Final

import msgspec

from headgate.model.money import PAYER_BY_CAUSE, BillCause, NanoUsd
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, Instant
from headgate.model.usage import UsageSource
from headgate.ports.ledger import EndpointTimeRow, UsageRow

TEXT_CHARS_MAX: Final = 200
"""Maximum length of a name from a client or an engine."""
COUNT_MAX: Final = 2**31 - 1
AMOUNT_MAX: Final = 2**63 - 1
DAY_NS: Final = 86_400 * SECOND

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY: Final = date(1970, 1, 1)

USAGE_COLUMNS: Final = tuple("class" if name == "service_class" else name for name in UsageRow._fields)
ENDPOINT_TIME_COLUMNS: Final = tuple(each.name for each in fields(EndpointTimeRow))
_time_fields: Final = attrgetter(*ENDPOINT_TIME_COLUMNS)

UsageKey = tuple[datetime, str, int, int]
"""Primary key of a usage row: arrival, request, attempt, correction."""


JournalEntry = tuple[
    Instant, str, int, str, str, str, str, str, str, str, bool, int, int, int, tuple[tuple[str, str], ...]
]
"""Journal entry for an attempt that is about to be sent: arrival, request, attempt number, tenant, class, requested
model, served model, pool, endpoint, api, stream, estimated prompt tokens, queue time in µs, degradation level,
metadata.
"""


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows that are written to the database in one transaction."""

    usage: tuple[UsageRow, ...] = ()
    endpoint_times: tuple[EndpointTimeRow, ...] = ()

    def __len__(self) -> int:
        return len(self.usage) + len(self.endpoint_times)


# Limits


def clamp_text(text: str) -> str:
    """Truncates the text and replaces characters that the database does not accept."""
    if len(text) > TEXT_CHARS_MAX:
        text = f"{text[: TEXT_CHARS_MAX - 1]}…"
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "�").encode("utf-8", "replace").decode()


def clamp_count(count: int) -> int:
    """Clamps a token count to the range of its column. Engines may report any number."""
    if 0 <= count <= COUNT_MAX:
        return count
    return 0 if count < 0 else COUNT_MAX


# Database format


def to_datetime(at: Instant) -> datetime:
    return _EPOCH + timedelta(microseconds=at // 1_000)


def day_of(at: Instant) -> date:
    return _FIRST_DAY + timedelta(days=at // DAY_NS)


def days_of(rows: Iterable[UsageRow | EndpointTimeRow]) -> set[date]:
    return {_FIRST_DAY + timedelta(days=number) for number in {row.at // DAY_NS for row in rows}}


def endpoint_time_values(row: EndpointTimeRow) -> tuple[object, ...]:
    return (to_datetime(row.at), *_time_fields(row)[1:])


def key_of(row: UsageRow) -> UsageKey:
    return to_datetime(row.at), row.request, row.attempt, row.correction


MODEL_UNKNOWN: Final = (
    *(Outcome.INVALID_REQUEST.value, Outcome.FORBIDDEN.value, Outcome.UNAUTHORIZED.value, Outcome.KEY_UNVERIFIED.value),
    Outcome.MODEL_NOT_FOUND.value,
)
"""Outcomes decided before the model is known to exist.

Daily totals omit the model for these, and for requests without a class.
"""
SUM_KEYS: Final = ("day", "tenant", "class", "model", "pool", "payer", "cause", "outcome")
MODEL_OR_EMPTY: Final = (
    "case when pool = '' and (class = '' or outcome in ("
    + ", ".join(f"'{outcome}'" for outcome in MODEL_UNKNOWN)
    + ")) then '' else model end"
)
"""SQL expression for the model in sums of usage rows."""
SUM_AMOUNTS: Final = (
    *("requests", "attempts", "tokens_in", "tokens_cached", "tokens_out", "tokens_reasoning", "engine_us"),
    *("input_nano_usd", "output_nano_usd", "overhead_nano_usd"),
)


class DailySums:
    """Amounts that rows add to each day's totals."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums: dict[tuple[Any, ...], list[int]] = {}

    def add(self, rows: Iterable[UsageRow]) -> None:
        sums = self._sums
        for row in rows:
            # Clients can send any number of nonexistent model names, each of which would create a total.
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
        """Records in sorted order, so that concurrent writers lock rows in the same order and cannot deadlock."""
        return [(_FIRST_DAY + timedelta(days=key[0]), *key[1:], *self._sums[key]) for key in sorted(self._sums)]


# Spool format

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(tuple[int, list[tuple[Any, ...]]])
_USAGE, _TIME = 0, 1


def pack_usage(rows: Sequence[UsageRow]) -> bytes:
    return _ENCODER.encode((_USAGE, rows))


def pack_endpoint_times(rows: Sequence[EndpointTimeRow]) -> bytes:
    return _ENCODER.encode((_TIME, [_time_fields(row) for row in rows]))


_FIXARRAY_2: Final = 0x92
"""MessagePack: first byte of an array of two items.

`_FIXARRAY` starts an array of up to 15 items, and `_ARRAY16` a longer one.
"""
_FIXARRAY, _ARRAY16 = 0x90, 0xDC


def count_rows(record: bytes) -> int:
    """Number of rows in a record, read from its first bytes; 0 if it is not a record."""
    if len(record) < 3 or record[0] != _FIXARRAY_2 or record[1] not in (_USAGE, _TIME):
        return 0
    if record[2] == _ARRAY16:
        return int.from_bytes(record[3:5], "big")
    return record[2] - _FIXARRAY if _FIXARRAY <= record[2] < _FIXARRAY + 16 else 0


def usage_keys(record: bytes) -> list[tuple[str, int]]:
    """Request ID and attempt number of each usage row. Raises `ValueError` if the record cannot be decoded."""
    kind, rows = _DECODER.decode(record)
    return [(values[1], values[2]) for values in rows if len(values) > 2] if kind == _USAGE else []


def unpack_record(record: bytes) -> RowBatch:
    """Decodes a record. Raises `ValueError` if the record has a different version."""
    kind, rows = _DECODER.decode(record)
    try:
        if kind == _USAGE:
            return RowBatch(usage=tuple(_usage_row(values) for values in rows))
        if kind == _TIME:
            return RowBatch(endpoint_times=tuple(EndpointTimeRow(*values) for values in rows))
    except TypeError as error:
        raise ValueError(str(error)) from None
    raise ValueError(f"unknown record kind {kind}")


def _usage_row(values: tuple[Any, ...]) -> UsageRow:
    *others, metadata = values
    return UsageRow(*others, metadata=tuple((name, value) for name, value in metadata))


# Journal format

_NOTE_DECODER: Final = msgspec.msgpack.Decoder(JournalEntry)


pack_entry: Final[Callable[[JournalEntry], bytes]] = _ENCODER.encode


def row_of_entry(record: bytes) -> UsageRow:
    """Row for an attempt whose process was killed. Its outcome is unknown, and the platform pays for it.

    Raises `ValueError` if the record cannot be decoded.
    """
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
        cause=BillCause.SHUTDOWN.value,
        payer=PAYER_BY_CAUSE[BillCause.SHUTDOWN].value,
        level=level,
        input_nano_usd=nothing,
        output_nano_usd=nothing,
        overhead_nano_usd=nothing,
        reserved_nano_usd=nothing,
        metadata=metadata,
    )
