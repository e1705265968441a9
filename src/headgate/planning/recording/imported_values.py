"""Converts the values of access logs. Each function raises `ValueError` with the expected format."""

import math
from datetime import UTC, datetime
from typing import Final

from headgate.model.outcome import Outcome
from headgate.model.ticket import Api

TOKENS_MAX: Final = 2**31
_US: Final = 1_000_000
_AT_US_MAX: Final = 2**53
_EPOCH_UNITS: Final = ((1e17, 1_000), (1e14, 1), (1e11, 0.001))
"""Lower bound of times since 1970 in nanoseconds, microseconds and milliseconds, and how many of them are 1 µs."""
_OUTCOMES: Final = {each.value: each for each in Outcome} | {
    "": Outcome.COMPLETED,
    "success": Outcome.COMPLETED,
    "ok": Outcome.COMPLETED,
    "200": Outcome.COMPLETED,
    "400": Outcome.INVALID_REQUEST,
    "401": Outcome.UNAUTHORIZED,
    "403": Outcome.FORBIDDEN,
    "404": Outcome.MODEL_NOT_FOUND,
    "413": Outcome.REQUEST_TOO_LARGE,
    "429": Outcome.RATE_LIMITED,
    "499": Outcome.CANCELLED,
    "503": Outcome.NO_ENDPOINTS,
    "504": Outcome.ENGINE_TIMEOUT,
}
_TRUE: Final = frozenset({"true", "t", "1", "yes"})
_FALSE: Final = frozenset({"false", "f", "0", "no", ""})


def time_us(text: str) -> int:
    """Converts a time to microseconds. Large numbers are times since 1970 in ms, µs or ns, others are seconds."""
    text = text.strip()
    try:
        seconds = float(text)
    except ValueError:
        at_us = _date_us(text)
    else:
        if not math.isfinite(seconds):
            raise ValueError("a time in seconds, or a date such as 2026-11-19T10:00:00.250Z")
        unit = next((unit for least, unit in _EPOCH_UNITS if abs(seconds) >= least), None)
        # An integer is converted exactly, because a float does not hold a time in nanoseconds.
        value = int(text) if text.lstrip("+-").isdecimal() and len(text) < 25 else seconds
        at_us = round(value * _US) if unit is None else round(value / unit)
    if abs(at_us) >= _AT_US_MAX:
        raise ValueError("a time within 285 years of 1970")
    return at_us


def _date_us(text: str) -> int:
    # `fromisoformat` supports only UTC offsets with minutes, and PostgreSQL writes `+00`.
    if len(text) > 3 and text[-3] in "+-" and text[-2:].isdecimal() and ":" in text:
        text += ":00"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("a time in seconds, or a date such as 2026-11-19T10:00:00.250Z") from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * _US + since.microseconds


def tokens(text: str) -> int:
    """Converts a number of tokens. An empty value is 0."""
    text = text.strip()
    if not text:
        return 0
    number = text.removesuffix(".0")
    if not (number.isascii() and number.isdecimal() and len(number) <= 10 and int(number) <= TOKENS_MAX):
        raise ValueError(f"a whole number of tokens from 0 to {TOKENS_MAX}")
    return int(number)


def flag(text: str) -> bool:
    text = text.strip().lower()
    if text not in _TRUE | _FALSE:
        raise ValueError("true or false")
    return text in _TRUE


def outcome(text: str) -> str:
    """Converts an outcome, a status code or a word such as success. Anything else is a failure of the engine."""
    return _OUTCOMES.get(text.strip().lower(), Outcome.ENGINE_ERROR).value


def api(text: str) -> str:
    text = text.strip() or Api.CHAT.value
    if text not in {each.value for each in Api}:
        raise ValueError(f"an API: one of {', '.join(each.value for each in Api)}")
    return text
