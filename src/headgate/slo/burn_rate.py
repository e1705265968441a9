"""Burn-rate alerts for a class's objectives.

An alert fires if the error budget is burning too fast over both a long window, which filters out short disturbances,
and a short window, which resolves the alert soon after recovery. It also requires a minimum number of bad requests,
because at low traffic a single bad request is a large share.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headgate.slo.alert import Alert, Severity
from headgate.slo.durations import DAY, HOUR, MINUTE, duration_text
from headgate.slo.objectives import ClassObjectives, Objective, percent
from headgate.slo.recording_rules import BAD_RATIO, BAD_REQUESTS

BAD_REQUESTS_MIN: Final = 10
"""Minimum number of bad requests in the long window."""
BAD_RATIO_MAX: Final = 0.5
"""Cap on the alert threshold. For a low objective, 14.4 times the allowed share would exceed 100 %."""


@dataclass(frozen=True, slots=True)
class BurnRateWindow:
    alert: str
    factor: float
    long_s: int
    short_s: int
    severity: Severity
    consequence: str
    """Time until the monthly error budget is exhausted at this burn rate."""


BURN_RATE_WINDOWS: Final = (
    BurnRateWindow(
        "HeadgateErrorBudgetBurnFast", 14.4, HOUR, 5 * MINUTE, Severity.PAGE, "the monthly error budget lasts two days"
    ),
    BurnRateWindow(
        "HeadgateErrorBudgetBurn", 6, 6 * HOUR, 30 * MINUTE, Severity.PAGE, "the monthly error budget lasts five days"
    ),
    BurnRateWindow(
        "HeadgateErrorBudgetBurnSlow",
        1,
        3 * DAY,
        6 * HOUR,
        Severity.TICKET,
        "the monthly error budget will be used up",
    ),
)


def burn_rate_alerts(objectives: ClassObjectives) -> Iterator[Alert]:
    for objective in objectives.ratio_objectives():
        for burn in BURN_RATE_WINDOWS:
            yield _alert(objectives.name, objective, burn)


def _alert(class_name: str, objective: Objective, burn: BurnRateWindow) -> Alert:
    which = f'{{class="{class_name}",objective="{objective.name}"}}'
    bad = round(min(burn.factor * objective.error_budget, BAD_RATIO_MAX), 9)
    expr = (
        f"{BAD_RATIO}{duration_text(burn.long_s)}{which} > {bad:g}"
        f" and {BAD_RATIO}{duration_text(burn.short_s)}{which} > {bad:g}"
        f" and {BAD_REQUESTS}{duration_text(burn.long_s)}{which} >= {BAD_REQUESTS_MIN}"
    )
    return Alert(
        burn.alert,
        expr,
        burn.severity,
        "error_budget_burn",
        f"class {class_name}: {{{{ $value | humanizePercentage }}}} of requests miss “{objective.description}”",
        f"The objective is {percent(objective.ppm)} of requests. At this rate, {burn.consequence}. `headgate doctor"
        f" --live` shows the cause, and `headgate explain --class {class_name} --since 10m` shows where requests spend"
        " their time.",
        labels=(("class", class_name), ("objective", objective.name)),
    )
