"""Reads the rate limits in a provider's response headers.

Two families are in use: `x-ratelimit-*` (OpenAI, and LiteLLM in front of other vendors) and `anthropic-ratelimit-*`.
The first gives resets as durations such as `6m0s`, or as seconds; the second as RFC 3339 timestamps. `Retry-After` is
a number of seconds or an HTTP date. LiteLLM passes on most of a vendor's headers only with the prefix `llm_provider-`,
including its own `Retry-After`.

A value that is too long or malformed counts as missing. All others are limited to the bounds of `ProviderLimits`.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from headgate.model.provider_limits import LEFT_MAX, WAIT_NS_MAX, ProviderLimits
from headgate.model.units import MILLISECOND, MINUTE, SECOND, Duration

HEADER_BYTES_MAX: Final = 64
"""Maximum length of a value that is parsed."""
BLOCKED_NS: Final = Duration(SECOND)
"""Time without requests to a provider that has rejected one because of its rate and has not reported a time."""
RESET_NS: Final = Duration(SECOND)
"""How long a limit with nothing left applies if the provider does not report when it is reset."""
_REJECTING: Final = (429, 503, 529)
"""Statuses of a provider that is overloaded or has reached a rate limit. 529 is Anthropic's."""
_NUMBER: Final = re.compile(rb"[0-9]{1,18}")
_SECONDS: Final = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?")
_DURATION: Final = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ms|h|m|s))+")
_DURATION_PART: Final = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?(ms|h|m|s)")
_UNITS: Final = {"h": 60 * MINUTE, "m": MINUTE, "s": SECOND, "ms": MILLISECOND}
_FAMILIES: Final = (b"x-ratelimit-", b"anthropic-ratelimit-")
_PASSED_ON: Final = b"llm_provider-"
"""Prefix of a vendor's headers in a response of LiteLLM."""


def read_rate_limits(status: int, headers: Mapping[bytes, bytes], now_s: float) -> ProviderLimits | None:
    """Returns the limits in the headers of a response. None if there are none.

    `headers` has names in lower case. `now_s` is the Unix time, for resets that are given as a time.
    """
    requests, requests_reset_ns = _left(headers, b"requests", now_s)
    tokens, tokens_reset_ns = _left(headers, b"tokens", now_s)
    blocked_ns = _blocked_ns(status, headers, now_s)
    if requests is None and tokens is None and not blocked_ns:
        return None
    return ProviderLimits(requests, requests_reset_ns, tokens, tokens_reset_ns, blocked_ns)


def _left(headers: Mapping[bytes, bytes], kind: bytes, now_s: float) -> tuple[int | None, Duration]:
    """Returns what is left of one limit, and the time until it is reset."""
    for family in _FAMILIES:
        # OpenAI and Anthropic order the words differently.
        openai = family == _FAMILIES[0]
        left = _number(_value(headers, family + (b"remaining-" + kind if openai else kind + b"-remaining")))
        if left is None:
            continue
        reset = _value(headers, family + (b"reset-" + kind if openai else kind + b"-reset"))
        return left, _wait_ns(reset, now_s) or RESET_NS
    return None, Duration(0)


def _blocked_ns(status: int, headers: Mapping[bytes, bytes], now_s: float) -> Duration:
    """Returns for how long the provider accepts nothing. 0 if it has not rejected the request because of its load."""
    if status not in _REJECTING:
        return Duration(0)
    wait_ns = _wait_ns(_value(headers, b"retry-after-ms"), now_s, unit=MILLISECOND)
    if wait_ns is None:
        wait_ns = _wait_ns(_value(headers, b"retry-after"), now_s)
    if wait_ns is None:
        # Without a time, a 503 is an error like any other.
        return Duration(0) if status == 503 else BLOCKED_NS
    return max(wait_ns, Duration(MILLISECOND))


def _value(headers: Mapping[bytes, bytes], name: bytes) -> bytes | None:
    value = headers.get(name)
    return headers.get(_PASSED_ON + name) if value is None else value


def _number(value: bytes | None) -> int | None:
    return None if value is None or _NUMBER.fullmatch(value.strip()) is None else min(int(value), LEFT_MAX)


def _wait_ns(value: bytes | None, now_s: float, *, unit: Duration = SECOND) -> Duration | None:
    """Returns the wait that a header gives as a number, a duration or a time. None if it is missing or malformed."""
    if value is None or len(value) > HEADER_BYTES_MAX or not value.isascii():
        return None
    text = value.decode("ascii").strip()
    if (number := _SECONDS.fullmatch(text)) is not None:
        return _bounded(_scaled(number[1], number[2], unit))
    if _DURATION.fullmatch(text) is not None:
        parts = _DURATION_PART.finditer(text)
        return _bounded(sum(_scaled(part[1], part[2], _UNITS[part[3]]) for part in parts))
    try:
        # The year and the zone are required, so that a bare number is never taken for a date.
        at = datetime.fromisoformat(text) if text[10:11] == "T" else parsedate_to_datetime(text)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    try:
        return _bounded(int((at.timestamp() - now_s) * SECOND))
    except (ValueError, OverflowError):
        return None


def _scaled(whole: str, fraction: str | None, unit: int) -> int:
    digits = fraction or ""
    return int(whole) * unit + (int(digits) * unit // 10 ** len(digits) if digits else 0)


def _bounded(wait_ns: int) -> Duration:
    return Duration(min(max(0, wait_ns), WAIT_NS_MAX))
