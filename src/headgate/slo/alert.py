"""What is an alert: when does it fire, whom does it wake, and which page says what to do?"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from headgate.slo.lengths import Length

RUNBOOKS: Final = "docs/operations/runbooks"
"""Where the pages are, unless somebody says where they are published."""
OF_THE_INCIDENT: Final = "{{ $labels.incident }}"
"""The page that the alert's own label names."""

Rule = dict[str, object]


class Severity(StrEnum):
    PAGE = "page"
    """Wakes somebody: callers suffer, or will within the hour."""
    TICKET = "ticket"
    """Is read by day."""


@dataclass(frozen=True, slots=True)
class Alert:
    name: str
    expr: str
    severity: Severity
    runbook: str
    """The name of its page, without its ending."""
    summary: str
    description: str
    """What it means, and the next command."""
    lasting_s: int = 0
    """How long it must hold before anybody hears of it."""
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
