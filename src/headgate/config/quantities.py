"""Quantities with units: durations, sizes, addresses, amounts.

Each parser converts a value's text to the core's unit, or raises `InvalidQuantity` with the expected form.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType

from headgate.model.money import NANO_USD_PER_USD
from headgate.model.units import MILLISECOND, MINUTE, SECOND

_NUMBER = r"([0-9]{1,12}(?:\.[0-9]{1,9})?)"
_DURATION = re.compile(_NUMBER + r" ?(ms|s|m|h)")
_FINE = re.compile(_NUMBER + r" ?(ps|ns|us|µs|ms|s)")
_SIZE = re.compile(_NUMBER + r" ?(B|KiB|MiB|GiB|kB|MB|GB)")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/\s]+):([0-9]{1,5})")
_DECIMAL = re.compile(r"[+-]?" + _NUMBER)
_SHARE = re.compile(_NUMBER + r"( ?%)?")
_RANGE = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?")
_USD = re.compile(r"([0-9]{1,9}(?:_[0-9]{3})*(?:\.[0-9]{1,9})?)")
_DAYS = re.compile(r"([0-9]{1,6}) ?d")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_WHOLE = re.compile(r"[+-]?[0-9]{1,3}(_?[0-9]{3})*|[+-]?[0-9]{1,18}")

_NANOSECONDS = {"ms": MILLISECOND, "s": SECOND, "m": MINUTE, "h": 60 * MINUTE}
_PICOSECONDS = {"ps": 1, "ns": 10**3, "us": 10**6, "µs": 10**6, "ms": 10**9, "s": 10**12}
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9}


class InvalidQuantity(Exception):
    """The text is malformed. The message gives the expected form."""


def duration(text: str) -> int:
    """Parses a duration into nanoseconds."""
    if found := _DURATION.fullmatch(text):
        return int(Decimal(found[1]) * _NANOSECONDS[found[2]])
    raise InvalidQuantity("a duration with its unit, such as 250ms, 10s, 5m or 1h")


def short_duration(text: str) -> int:
    """Parses a short duration into picoseconds."""
    if found := _FINE.fullmatch(text):
        return int(Decimal(found[1]) * _PICOSECONDS[found[2]])
    raise InvalidQuantity("a short duration with its unit, such as 13.2ms, 36us or 0.28ns")


def size(text: str) -> int:
    """Parses a size into bytes."""
    if found := _SIZE.fullmatch(text):
        return int(Decimal(found[1]) * _BYTES[found[2]])
    raise InvalidQuantity("a size with its unit, such as 512KiB, 32MiB or 1GiB")


def address(text: str) -> tuple[str, int]:
    """Parses a host and port. IPv6 hosts are written in brackets."""
    found = _ADDRESS.fullmatch(text)
    if found and int(found[2]) < 65536:
        return found[1].strip("[]"), int(found[2])
    raise InvalidQuantity(
        "an address with a port, such as 127.0.0.1:8080, [::1]:8080 or, for all interfaces, 0.0.0.0:8080"
    )


def whole_number(text: str) -> int:
    if _WHOLE.fullmatch(text):
        return int(text)
    raise InvalidQuantity("a whole number")


def decimal_number(text: str) -> float:
    if _DECIMAL.fullmatch(text):
        return float(text)
    raise InvalidQuantity("a number such as 8 or 17.5")


def share(text: str) -> float:
    """Parses a fraction or relative weight."""
    if found := _SHARE.fullmatch(text):
        return float(Decimal(found[1]) / 100 if found[2] else Decimal(found[1]))
    raise InvalidQuantity("a share such as 0.7 or 70%")


def number_range(text: str) -> tuple[int, int]:
    """Parses an inclusive range into its minimum and maximum."""
    found = _RANGE.fullmatch(text)
    if found and 1 <= int(found[1]) <= int(found[2] or found[1]):
        return int(found[1]), int(found[2] or found[1])
    raise InvalidQuantity("a number, or a range with the smaller number first, such as 200:800")


def timestamp(text: str) -> int:
    """Parses a timestamp into UTC nanoseconds."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        read = None
    if read is None or read.tzinfo is None:
        raise InvalidQuantity("a timestamp with a time zone, such as 2026-11-27T08:00:00+01:00 or 2026-11-27T07:00:00Z")
    since = read - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * SECOND + since.microseconds * 1_000


def usd(text: str) -> int:
    """Parses a dollar amount into billionths of a dollar, without rounding."""
    if _USD.fullmatch(text):
        return int(Decimal(text) * NANO_USD_PER_USD)
    raise InvalidQuantity("an amount in dollars with at most nine decimals, such as 100, 2.5 or 0.000075")


def days(text: str) -> int:
    if found := _DAYS.fullmatch(text):
        return int(found[1])
    raise InvalidQuantity("a number of days with its unit, such as 90d")


def day(text: str) -> int:
    """Parses a day into its start, in UTC nanoseconds."""
    if _DAY.fullmatch(text):
        try:
            return timestamp(f"{text}T00:00:00Z")
        except InvalidQuantity:
            pass
    raise InvalidQuantity("a day such as 2026-11-27; days start at midnight UTC")


def boolean(text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise InvalidQuantity("true or false")


PARSERS: Mapping[str, Callable[[str], object]] = MappingProxyType(
    {
        "address": address,
        "day": day,
        "days": days,
        "duration": duration,
        "fine": short_duration,
        "moment": timestamp,
        "range": number_range,
        "share": share,
        "size": size,
        "usd": usd,
    }
)
"""Parser for each `reads` value in the schema."""
PATTERNS: Mapping[str, str] = MappingProxyType(
    {
        "address": _ADDRESS.pattern,
        "day": _DAY.pattern,
        "days": _DAYS.pattern,
        "duration": _DURATION.pattern,
        "fine": _FINE.pattern,
        "moment": r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ].+",
        "range": _RANGE.pattern,
        "share": _SHARE.pattern,
        "size": _SIZE.pattern,
        "usd": _USD.pattern,
    }
)
"""Regular expression for each kind in `PARSERS`. A parser may be stricter than its expression."""


def duration_text(nanoseconds: int) -> str:
    """Duration in configuration file notation."""
    for unit, length in (("h", 60 * MINUTE), ("m", MINUTE), ("s", SECOND)):
        if nanoseconds and nanoseconds % length == 0:
            return f"{nanoseconds // length}{unit}"
    if nanoseconds % SECOND == 0:
        return f"{nanoseconds // SECOND}s"
    return f"{Decimal(nanoseconds) / MILLISECOND:f}ms"


def short_duration_text(picoseconds: int) -> str:
    """Short duration in configuration file notation."""
    unit = next((unit for unit in ("s", "ms", "us", "ns") if picoseconds >= _PICOSECONDS[unit]), "ns")
    return f"{(Decimal(picoseconds) / _PICOSECONDS[unit]).normalize():f}{unit}"


def size_text(size_bytes: int) -> str:
    """Size in configuration file notation."""
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes % _BYTES[unit] == 0:
            return f"{size_bytes // _BYTES[unit]}{unit}"
    return f"{size_bytes}B"


def usd_text(nano_usd: int) -> str:
    """Dollars in configuration file notation."""
    text = f"{Decimal(nano_usd) / NANO_USD_PER_USD:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def days_text(number: int) -> str:
    return f"{number}d"


def day_text(nanoseconds: int) -> str:
    """UTC day that contains a timestamp."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=nanoseconds // SECOND)).date().isoformat()


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
