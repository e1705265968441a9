"""Alerts: expression, severity, annotations and runbook."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from headgate.slo.lengths import Length

RUNBOOKS: Final = "docs/operations/runbooks"
"""Default location of the runbooks."""
OF_THE_INCIDENT: Final = "{{ $labels.incident }}"
"""Runbook named by the alert's own label."""

Rule = dict[str, object]


class Severity(StrEnum):
    PAGE = "page"
    """Needs immediate attention: callers are affected, or will be within the hour."""
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
    lasting_s: int = 0
    """Time in seconds for which the expression must hold before the alert fires."""
    labels: tuple[tuple[str, str], ...] = field(default=())


def rule_of(alert: Alert, length: Length, runbooks: str) -> Rule:
    rule: Rule = {"alert": alert.name, "expr": alert.expr}
    if alert.lasting_s:
        rule["for"] = length(alert.lasting_s)
    rule["labels"] = {"severity": alert.severity.value, **dict(alert.labels)}
    rule["annotations"] = {
        "summary": alert.summary,
        "description": alert.description,
        "runbook_url": f"{runbooks.rstrip('/')}/{alert.runbook}.md",
    }
    return rule


def recorded(name: str, expr: str, **labels: str) -> Rule:
    rule: Rule = {"record": name, "expr": expr}
    if labels:
        rule["labels"] = labels
    return rule
