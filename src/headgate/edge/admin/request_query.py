"""Query parameters of the admin pages.

The list of parameters is fixed, and they are parsed strictly. Unknown, repeated, overlong or invalid parameters are
rejected with a message that shows the valid form. A time is a timestamp with a time zone, or a duration before now.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import parse_qsl

from headgate.model.outcome import Outcome
from headgate.model.units import MILLISECOND, SECOND, Duration

LIMIT_MAX: Final = 200
LIMIT_DEFAULT: Final = 20
QUERY_BYTES_MAX: Final = 2_048
_VALUE_CHARS_MAX: Final = 256
_NAMES: Final = ("tenant", "class", "outcome", "since", "until", "min_duration_ms", "limit", "local")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_DURATION: Final = re.compile(r"([0-9]{1,9})(s|m|h|d)")
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SINCE_DEFAULT_NS: Final = Duration(3_600 * SECOND)
"""Default start of the range, as a duration before now."""


class BadQuery(Exception):
    """The query is invalid. The message shows the valid form."""


@dataclass(frozen=True, slots=True)
class Ago:
    """Time given as a duration before now."""

    length_ns: Duration


@dataclass(frozen=True, slots=True)
class Timestamp:
    """Time given as a timestamp."""

    instant: int
    """Nanoseconds since the Unix epoch."""


@dataclass(frozen=True, slots=True)
class RequestQuery:
    """Filter for requests. None matches everything."""

    tenant: str | None = None
    service_class: str | None = None
    outcome: Outcome | None = None
    since: Ago | Timestamp = Ago(SINCE_DEFAULT_NS)
    until: Ago | Timestamp = Ago(Duration(0))
    duration_ns_min: Duration | None = None
    limit: int = LIMIT_DEFAULT
    local: bool = False
    """Whether to query only this process."""
    text: str = ""
    """Query string as received, for forwarding to other processes."""


def read_query(query: bytes) -> RequestQuery:
    """Parses the query of `/requests`. Raises `BadQuery`."""
    given = _parse_query(query, _NAMES)
    min_duration = given.get("min_duration_ms")
    return RequestQuery(
        tenant=given.get("tenant"),
        service_class=given.get("class"),
        outcome=_outcome(given.get("outcome")),
        since=_moment("since", given.get("since"), Ago(SINCE_DEFAULT_NS)),
        until=_moment("until", given.get("until"), Ago(Duration(0))),
        duration_ns_min=None
        if min_duration is None
        else Duration(_number("min_duration_ms", min_duration) * MILLISECOND),
        limit=_limit(given.get("limit")),
        local=_local(given),
        text=query.decode("ascii"),
    )


def read_local(query: bytes) -> bool:
    """Parses the query of `/explain/`. Raises `BadQuery`."""
    return _local(_parse_query(query, ("local",)))


def _parse_query(query: bytes, names: tuple[str, ...]) -> dict[str, str]:
    if len(query) > QUERY_BYTES_MAX:
        raise BadQuery(f"the query string exceeds {QUERY_BYTES_MAX} bytes; shorten it")
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=len(names),
        )
    except ValueError:
        raise BadQuery(f"invalid query string; use NAME=VALUE pairs joined by &; names: {_listed(names)}") from None
    given: dict[str, str] = {}
    for name, value in pairs:
        if name not in names:
            raise BadQuery(f"unknown parameter; valid parameters: {_listed(names)}")
        if name in given:
            raise BadQuery(f"{name} must not occur more than once")
        if not 0 < len(value) <= _VALUE_CHARS_MAX or not value.isprintable():
            raise BadQuery(f"{name} must have 1 to {_VALUE_CHARS_MAX} printable characters")
        given[name] = value
    return given


def _local(given: dict[str, str]) -> bool:
    if given.get("local", "1") != "1":
        raise BadQuery("local must be 1 or absent")
    return "local" in given


def _outcome(text: str | None) -> Outcome | None:
    if text is None:
        return None
    try:
        return Outcome(text)
    except ValueError:
        raise BadQuery(f"outcome must be one of {_listed(tuple(each.value for each in Outcome))}") from None


def _limit(text: str | None) -> int:
    number = LIMIT_DEFAULT if text is None else _number("limit", text)
    if not 1 <= number <= LIMIT_MAX:
        raise BadQuery(f"limit must be from 1 to {LIMIT_MAX}")
    return number


def _number(name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise BadQuery(f"{name} must be a whole number with at most nine digits")
    return int(text)


def _moment(name: str, text: str | None, otherwise: Ago) -> Ago | Timestamp:
    if text is None:
        return otherwise
    if found := _DURATION.fullmatch(text):
        return Ago(Duration(int(found[1]) * _UNITS[found[2]] * SECOND))
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        read = None
    if read is None or read.tzinfo is None:
        raise BadQuery(f"{name} must be a duration such as 10m or a timestamp such as 2026-11-27T08:00:00Z")
    return Timestamp((read - _EPOCH) // timedelta(microseconds=1) * 1_000)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)
