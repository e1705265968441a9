"""Operator log: one line per fleet change or request outcome (`log_observer.py`), as text or JSON.

Each line has a text and structured fields such as the request id. Prompts, responses and keys are never logged. Model
and class names come from clients and error texts from engines, so control characters are escaped.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, cast

import msgspec

from headgate.wire.escape import escaped

log = logging.getLogger("headgate")
LINES_PER_S_MAX: Final = 10
"""Maximum number of log lines per second of one kind that clients cause."""
_QUOTED: Final = frozenset(' "=\\')
"""Values that contain one of these characters are quoted in the text format."""


def log_event(level: int, message: str, **fields: object) -> None:
    log.log(level, message, extra={"fields": fields})


class LogLimit:
    """Limits the log lines of one kind to `LINES_PER_S_MAX` per second."""

    def __init__(self, suppressed: str, now_s: Callable[[], float], **fields: object) -> None:
        """`suppressed` is the message with the number of lines that were left out, which also has the `fields`."""
        self._message = suppressed
        self._now_s = now_s
        self._fields = fields
        self._second = 0
        self._logged = self._suppressed = 0

    def allows(self) -> bool:
        """Counts a line and returns whether it may be logged."""
        second = int(self._now_s())
        if second != self._second:
            if self._suppressed:
                log_event(logging.WARNING, self._message, **self._fields, count=self._suppressed)
            self._second, self._logged, self._suppressed = second, 0, 0
        if self._logged >= LINES_PER_S_MAX:
            self._suppressed += 1
            return False
        self._logged += 1
        return True


class TextFormatter(logging.Formatter):
    """Human-readable format: time, text, and fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{_timestamp(record)} {record.levelname} {record.name}: {escaped(record.getMessage())}"
        fields = " ".join(f"{name}={_value(value)}" for name, value in _fields(record).items())
        return _with_traceback(self, record, f"{text} {fields}".rstrip())


class JsonFormatter(logging.Formatter):
    """JSON format: one object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    return cast("Mapping[str, object]", getattr(record, "fields", {}))


def _value(value: object) -> str:
    text = escaped(str(value).replace("\\", r"\\"))
    if not _QUOTED & set(text):
        return text
    quoted = text.replace('"', r"\"")
    return f'"{quoted}"'


def _with_traceback(formatter: logging.Formatter, record: logging.LogRecord, text: str) -> str:
    return f"{text}\n{formatter.formatException(record.exc_info)}" if record.exc_info else text
