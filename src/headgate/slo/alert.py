"""Alerts: expression, severity, annotations and runbook."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from headgate.slo.durations import DurationFormat

RUNBOOKS: Final = "docs/operations/runbooks"
"""Path of the runbooks, in the repository and on the admin listener."""
INCIDENT_RUNBOOK: Final = "{{ $labels.incident }}"
"""Runbook identified by the alert's own label."""

Rule = dict[str, object]


class Severity(StrEnum):
    PAGE = "page"
    """Needs immediate attention, because callers are affected or will be within an hour."""
    TICKET = "ticket"
    """Can wait for working hours."""


@dataclass(frozen=True, slots=True)
class Alert:
    name: str
    expr: str
    severity: Severity
    runbook: str
    """File name of the runbook, without extension."""
    summary: str
    description: str
    """Meaning of the alert and the next command."""
    for_s: int = 0
    """Time in seconds for which the expression must be true before the alert fires."""
    labels: tuple[tuple[str, str], ...] = field(default=())


def alert_rule(alert: Alert, duration: DurationFormat, runbooks: str) -> Rule:
    rule: Rule = {"alert": alert.name, "expr": alert.expr}
    if alert.for_s:
        rule["for"] = duration(alert.for_s)
    rule["labels"] = {"severity": alert.severity.value, **dict(alert.labels)}
    rule["annotations"] = {
        "summary": alert.summary,
        "description": alert.description,
        "runbook_url": f"{runbooks.rstrip('/')}/{alert.runbook}.md",
    }
    return rule


def recording_rule(name: str, expr: str, **labels: str) -> Rule:
    rule: Rule = {"record": name, "expr": expr}
    if labels:
        rule["labels"] = labels
    return rule
