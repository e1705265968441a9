"""Operator log: one line per fleet change or request outcome (`log_observer.py`), as text or JSON.

Each line has a text and structured fields such as the request id. Prompts, responses and keys are never logged. Model
and class names come from clients and error texts from engines, so control characters are escaped.
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import cast

import msgspec

from headgate.wire.escape import escaped

log = logging.getLogger("headgate")


def log_event(level: int, message: str, **fields: object) -> None:
    log.log(level, message, extra={"fields": fields})


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
    text = escaped(str(value))
    if " " not in text and '"' not in text:
        return text
    quoted = text.replace('"', '\\"')
    return f'"{quoted}"'


def _with_traceback(formatter: logging.Formatter, record: logging.LogRecord, text: str) -> str:
    return f"{text}\n{formatter.formatException(record.exc_info)}" if record.exc_info else text
