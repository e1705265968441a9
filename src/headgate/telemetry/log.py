"""The log for operators.

It contains changes in the fleet and how requests ended: failures of engines as warnings, rejections as information,
completions only at debug level. Each line has a text and structured fields, such as the id of the request. Prompts,
answers and keys are never logged.

The log stays bounded under a flood of rejections: at most `REFUSALS_PER_TENANT_S_MAX` lines per second and tenant, and
`ENDINGS_PER_S_MAX` per second in total, are written; the rest are counted. Some text in a line comes from callers and
engines (names of models and classes, error texts), so control characters are escaped and reasons are truncated.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import cast

import msgspec

from headgate.core.admission.budgets import dollars
from headgate.core.commands import BudgetCrossed, Command, Dispatch, Eject, End, Readmit
from headgate.core.events import (
    AttemptEnded,
    EndpointJoined,
    EndpointLeaving,
    EndpointUnreadied,
    Event,
    FirstToken,
    PolicyChanged,
    RequestArrived,
)
from headgate.model.outcome import Outcome
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, TenantId, seconds
from headgate.wire.escape import escaped, printable

ENDINGS_PER_S_MAX = 50
REFUSALS_PER_TENANT_S_MAX = 10
"""Log lines per second and tenant for requests rejected on arrival."""
REASON_CHARS_MAX = 200

_LET_DOWN = (Outcome.ENGINE_FAILED, Outcome.ENGINE_SILENT, Outcome.GATEWAY_FAILED, Outcome.EVICTED)

log = logging.getLogger("headgate")


class LogObserver:
    def __init__(self) -> None:
        self._second = 0
        self._in_second = self._left_out = 0
        """Endings in this second: those logged, and those only counted."""
        self._refused: Counter[TenantId] = Counter()
        """Rejections on arrival that were logged in this second; at most `ENDINGS_PER_S_MAX` tenants."""

    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        match event:
            case RequestArrived() | FirstToken() | AttemptEnded():
                pass
            case EndpointJoined(endpoint):
                tell(logging.INFO, "endpoint joined", endpoint=endpoint.id, in_flight_max=endpoint.in_flight_max)
            case EndpointUnreadied(endpoint_id):
                tell(logging.WARNING, "endpoint says that it cannot serve yet", endpoint=endpoint_id)
            case EndpointLeaving(endpoint_id):
                tell(logging.INFO, "endpoint is leaving", endpoint=endpoint_id)
            case PolicyChanged(_, policy_hash):
                tell(logging.INFO, "policy is in force", hash=policy_hash)
            case _:
                pass
        tenant = event.ticket.tenant if isinstance(event, RequestArrived) else None
        for command in commands:
            self._command(command, tenant, now)

    def _command(self, command: Command, tenant: TenantId | None, now: Instant) -> None:
        match command:
            case Dispatch():
                pass
            case End():
                self._end(command, tenant, now)
            case Eject(endpoint_id, until, reason):
                wait = seconds(Duration(until - now))
                tell(logging.WARNING, "endpoint ejected", endpoint=endpoint_id, wait=wait, reason=reason)
            case BudgetCrossed(budget, percent):
                level = logging.WARNING if percent >= 100 else logging.INFO
                limit, spent = dollars(budget.limit), dollars(budget.spent)
                scope, period = budget.scope, budget.period
                tell(level, "budget spent", scope=scope, period=period, percent=percent, limit=limit, spent=spent)
            case Readmit(endpoint_id, reason):
                tell(logging.INFO, "endpoint may serve", endpoint=endpoint_id, reason=reason)
            case _:
                pass

    def _end(self, end: End, tenant: TenantId | None, now: Instant) -> None:
        level = _level(end.outcome)
        if not log.isEnabledFor(level) or not self._has_room(tenant, now):
            return
        tell(
            level,
            "request ended",
            request=end.request_id,
            outcome=end.outcome.value,
            service_class=end.service_class,
            attempts=end.attempts,
            queue_ms=end.waited_ns // MILLISECOND,
            **({"held_ms": end.held_ns // MILLISECOND} if end.held_ns else {}),
            reason=printable(end.reason, REASON_CHARS_MAX),
        )

    def _has_room(self, tenant: TenantId | None, now: Instant) -> bool:
        """Counts an ending; true if it may be logged in this second. `tenant` is set if it was rejected on arrival."""
        second = now // SECOND
        if second != self._second:
            if self._left_out:
                tell(logging.WARNING, "endings not logged one by one", count=self._left_out)
            self._second, self._in_second, self._left_out = second, 0, 0
            self._refused.clear()
        full = self._in_second >= ENDINGS_PER_S_MAX
        if full or (tenant is not None and self._refused[tenant] >= REFUSALS_PER_TENANT_S_MAX):
            self._left_out += 1
            return False
        self._in_second += 1
        if tenant is not None:
            self._refused[tenant] += 1
        return True


def _level(outcome: Outcome) -> int:
    if outcome is Outcome.COMPLETED:
        return logging.DEBUG
    return logging.WARNING if outcome in _LET_DOWN else logging.INFO


def tell(level: int, message: str, **fields: object) -> None:
    log.log(level, message, extra={"fields": fields})


class TextFormatter(logging.Formatter):
    """For people: the time, the text, and the fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{_moment(record)} {record.levelname} {record.name}: {escaped(record.getMessage())}"
        fields = " ".join(f"{name}={_value(value)}" for name, value in _fields(record).items())
        return _with_trace(self, record, f"{text} {fields}".rstrip())


class JsonFormatter(logging.Formatter):
    """For machines: one object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    return cast("Mapping[str, object]", getattr(record, "fields", {}))


def _value(value: object) -> str:
    text = escaped(str(value))
    if " " not in text and '"' not in text:
        return text
    quoted = text.replace('"', '\\"')
    return f'"{quoted}"'


def _with_trace(formatter: logging.Formatter, record: logging.LogRecord, text: str) -> str:
    return f"{text}\n{formatter.formatException(record.exc_info)}" if record.exc_info else text
