"""Observer that writes fleet changes and request outcomes to the operator log.

Engine failures are logged at warning level, rejections at info level, and completions at debug level.

The volume is limited during a flood of rejections: at most `REJECTIONS_PER_TENANT_S_MAX` lines per tenant per second
and `ENDINGS_PER_S_MAX` lines per second in total; the rest are only counted. Error texts come from engines, so reasons
are truncated.
"""

import logging
from collections import Counter
from collections.abc import Sequence

from headgate.core.admission.budgets import format_usd
from headgate.core.commands import BudgetCrossed, Command, Dispatch, Eject, End, Readmit
from headgate.core.events import (
    AttemptEnded,
    AttemptsProgressed,
    EndpointJoined,
    EndpointLeaving,
    EndpointNotReady,
    Event,
    FirstToken,
    PolicyChanged,
    RequestArrived,
)
from headgate.model.outcome import Outcome
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, TenantId, format_seconds
from headgate.telemetry.log import log, log_event
from headgate.wire.escape import printable

ENDINGS_PER_S_MAX = 50
REJECTIONS_PER_TENANT_S_MAX = 10
"""Maximum number of log lines per tenant per second for requests rejected on arrival."""
REASON_CHARS_MAX = 200

# Looked up once: in Python 3.11, access to a member through its enum takes as long as several function calls.
_COMPLETED = Outcome.COMPLETED
_WARNING_OUTCOMES = (Outcome.ENGINE_ERROR, Outcome.ENGINE_TIMEOUT, Outcome.INTERNAL_ERROR, Outcome.EVICTED)

_UNLOGGED_EVENTS = frozenset({RequestArrived, FirstToken, AttemptEnded, AttemptsProgressed})


class LogObserver:
    def __init__(self) -> None:
        self._second = 0
        self._logged = self._suppressed = 0
        """Number of requests finished in the current second that were logged (`_logged`) or only counted
        (`_suppressed`).
        """
        self._policy_hash = ""
        self._rejected: Counter[TenantId] = Counter()
        """Rejections on arrival that have been logged in this second, for at most `ENDINGS_PER_S_MAX` tenants."""

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        if type(event) not in _UNLOGGED_EVENTS:
            self._log_event(event)
        if commands:
            tenant = event.ticket.tenant if type(event) is RequestArrived else None
            for command in commands:
                if type(command) is End:
                    self._log_end(command, tenant, now)
                elif type(command) is not Dispatch:
                    self._log_command(command, now)

    def _log_event(self, event: Event) -> None:
        match event:
            case EndpointJoined(endpoint):
                log_event(logging.INFO, "endpoint joined", endpoint=endpoint.id, in_flight_max=endpoint.in_flight_max)
            case EndpointNotReady(endpoint_id):
                log_event(logging.WARNING, "endpoint is not ready", endpoint=endpoint_id)
            case EndpointLeaving(endpoint_id):
                log_event(logging.INFO, "endpoint is leaving", endpoint=endpoint_id)
            case PolicyChanged(_, policy_hash) if policy_hash != self._policy_hash:
                # While a large directory is read for the first time, many policies have the same hash.
                self._policy_hash = policy_hash
                log_event(logging.INFO, "policy applied", hash=policy_hash)
            case _:
                pass

    def _log_command(self, command: Command, now: Instant) -> None:
        match command:
            case Eject(endpoint_id, until, reason):
                wait = format_seconds(Duration(until - now))
                log_event(logging.WARNING, "endpoint ejected", endpoint=endpoint_id, wait=wait, reason=reason)
            case BudgetCrossed(budget, percent):
                level = logging.WARNING if percent >= 100 else logging.INFO
                limit, spent = format_usd(budget.limit), format_usd(budget.spent)
                scope, period = budget.scope, budget.period
                log_event(
                    level,
                    "budget threshold reached",
                    scope=scope,
                    period=period,
                    percent=percent,
                    limit=limit,
                    spent=spent,
                )
            case Readmit(endpoint_id, reason):
                log_event(logging.INFO, "endpoint readmitted", endpoint=endpoint_id, reason=reason)
            case _:
                pass

    def _log_end(self, end: End, tenant: TenantId | None, now: Instant) -> None:
        level = logging.DEBUG if end.outcome is _COMPLETED else _level(end.outcome)
        if not log.isEnabledFor(level) or not self._may_log(tenant, now):
            return
        log_event(
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

    def _may_log(self, tenant: TenantId | None, now: Instant) -> bool:
        """Counts a finished request and returns whether it may be logged.

        `tenant` is set if it was rejected on arrival.
        """
        second = now // SECOND
        if second != self._second:
            if self._suppressed:
                log_event(logging.WARNING, "suppressed request log lines", count=self._suppressed)
            self._second, self._logged, self._suppressed = second, 0, 0
            self._rejected.clear()
        full = self._logged >= ENDINGS_PER_S_MAX
        if full or (tenant is not None and self._rejected[tenant] >= REJECTIONS_PER_TENANT_S_MAX):
            self._suppressed += 1
            return False
        self._logged += 1
        if tenant is not None:
            self._rejected[tenant] += 1
        return True


def _level(outcome: Outcome) -> int:
    """Log level of a request that did not complete."""
    return logging.WARNING if outcome in _WARNING_OUTCOMES else logging.INFO
