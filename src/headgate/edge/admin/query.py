"""What is asked of a page that goes by its query?

Every parameter is on a list, stands there once, is short, and is read strictly; anything else is refused with what
could be written. Moments are written with their zone, or as a length of time before now.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import parse_qsl

from headgate.model.outcome import Outcome
from headgate.model.units import MILLISECOND, SECOND, Duration

LIMIT_MAX: Final = 200
LIMIT: Final = 20
QUERY_BYTES_MAX: Final = 2_048
_VALUE_CHARS_MAX: Final = 256
_NAMES: Final = ("tenant", "class", "outcome", "since", "until", "slower_ms", "limit", "local")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_LENGTH: Final = re.compile(r"([0-9]{1,9})(s|m|h|d)")
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SINCE_NS: Final = Duration(3_600 * SECOND)
"""How far back is looked where nobody says."""


class BadQuery(Exception):
    """The message says what is wrong, and what could be written."""


@dataclass(frozen=True, slots=True)
class Before:
    """A moment so long before now."""

    length_ns: Duration


@dataclass(frozen=True, slots=True)
class At:
    """A moment of the calendar."""

    instant: int


@dataclass(frozen=True, slots=True)
class RequestQuery:
    """Which requests are asked for; what is None may be anything."""

    tenant: str | None = None
    service_class: str | None = None
    outcome: Outcome | None = None
    since: Before | At = Before(SINCE_NS)
    until: Before | At = Before(Duration(0))
    slower_ns: Duration | None = None
    limit: int = LIMIT
    local: bool = False
    """Whether this process alone is asked."""
    text: str = ""
    """As it was sent, for whoever asks others the same."""


def read_query(query: bytes) -> RequestQuery:
    """Raises `BadQuery`."""
    given = _given(query, _NAMES)
    slower = given.get("slower_ms")
    return RequestQuery(
        tenant=given.get("tenant"),
        service_class=given.get("class"),
        outcome=_outcome(given.get("outcome")),
        since=_moment("since", given.get("since"), Before(SINCE_NS)),
        until=_moment("until", given.get("until"), Before(Duration(0))),
        slower_ns=None if slower is None else Duration(_number("slower_ms", slower) * MILLISECOND),
        limit=_limit(given.get("limit")),
        local=_local(given),
        text=query.decode("ascii"),
    )


def read_local(query: bytes) -> bool:
    """Raises `BadQuery`."""
    return _local(_given(query, ("local",)))


def _given(query: bytes, names: tuple[str, ...]) -> dict[str, str]:
    if len(query) > QUERY_BYTES_MAX:
        raise BadQuery(f"the query is longer than {QUERY_BYTES_MAX} bytes; ask for less")
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=len(names),
        )
    except ValueError:
        raise BadQuery(f"the query cannot be read; write NAME=VALUE joined by &, of {_listed(names)}") from None
    given: dict[str, str] = {}
    for name, value in pairs:
        if name not in names:
            raise BadQuery(f"one of the parameters is not known here; there is {_listed(names)}")
        if name in given:
            raise BadQuery(f"{name} is there twice; write it once")
        if not 0 < len(value) <= _VALUE_CHARS_MAX or not value.isprintable():
            raise BadQuery(f"{name} must be of 1 to {_VALUE_CHARS_MAX} letters that can be shown")
        given[name] = value
    return given


def _local(given: dict[str, str]) -> bool:
    if given.get("local", "1") != "1":
        raise BadQuery("local can be 1 or left out")
    return "local" in given


def _outcome(text: str | None) -> Outcome | None:
    if text is None:
        return None
    try:
        return Outcome(text)
    except ValueError:
        raise BadQuery(f"outcome must be one of {_listed(tuple(each.value for each in Outcome))}") from None


def _limit(text: str | None) -> int:
    number = LIMIT if text is None else _number("limit", text)
    if not 1 <= number <= LIMIT_MAX:
        raise BadQuery(f"limit must be from 1 to {LIMIT_MAX}")
    return number


def _number(name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise BadQuery(f"{name} must be a number of at most nine digits")
    return int(text)


def _moment(name: str, text: str | None, otherwise: Before) -> Before | At:
    if text is None:
        return otherwise
    if found := _LENGTH.fullmatch(text):
        return Before(Duration(int(found[1]) * _UNITS[found[2]] * SECOND))
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        read = None
    if read is None or read.tzinfo is None:
        raise BadQuery(f"{name} must be a length of time such as 10m, or a moment such as 2026-11-27T08:00:00Z")
    return At((read - _EPOCH) // timedelta(microseconds=1) * 1_000)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)
