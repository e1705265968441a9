"""Burn-rate alerts for the objectives of a class.

An alert fires if the error budget burns too fast over a long window, which filters out short disturbances, and over a
short window, which ends the alert soon after recovery. It needs a minimum number of bad requests, because with little
traffic one bad request is a large share.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headgate.slo.alert import Alert, Severity
from headgate.slo.lengths import DAY, HOUR, MINUTE, name
from headgate.slo.promises import ClassPromises, Objective, percent
from headgate.slo.recording import BAD_RATIO, BAD_REQUESTS

BAD_REQUESTS_MIN: Final = 10
"""Within the long window."""
BAD_RATIO_MAX: Final = 0.5
"""Upper limit of the threshold. For a low objective, 14.4 times the allowed share would exceed 100 %."""


@dataclass(frozen=True, slots=True)
class Burn:
    alert: str
    factor: float
    long_s: int
    short_s: int
    severity: Severity
    leaves: str
    """Remaining lifetime of the monthly error budget at this rate."""


BURNS: Final = (
    Burn(
        "HeadgateObjectiveBurnsFast", 14.4, HOUR, 5 * MINUTE, Severity.PAGE, "the monthly error budget lasts two days"
    ),
    Burn("HeadgateObjectiveBurns", 6, 6 * HOUR, 30 * MINUTE, Severity.PAGE, "the monthly error budget lasts five days"),
    Burn(
        "HeadgateObjectiveBurnsSlowly",
        1,
        3 * DAY,
        6 * HOUR,
        Severity.TICKET,
        "the monthly error budget will be used up",
    ),
)


def burn_alerts(promises: ClassPromises) -> Iterator[Alert]:
    for objective in promises.objectives():
        for burn in BURNS:
            yield _alert(promises.name, objective, burn)


def _alert(class_name: str, objective: Objective, burn: Burn) -> Alert:
    which = f'{{class="{class_name}",objective="{objective.name}"}}'
    bad = round(min(burn.factor * objective.allowed_bad, BAD_RATIO_MAX), 9)
    expr = (
        f"{BAD_RATIO}{name(burn.long_s)}{which} > {bad:g}"
        f" and {BAD_RATIO}{name(burn.short_s)}{which} > {bad:g}"
        f" and {BAD_REQUESTS}{name(burn.long_s)}{which} >= {BAD_REQUESTS_MIN}"
    )
    return Alert(
        burn.alert,
        expr,
        burn.severity,
        "objective_burns",
        f"class {class_name}: {{{{ $value | humanizePercentage }}}} of requests miss “{objective.meaning}”",
        f"The objective is {percent(objective.ppm)} of requests. At this rate, {burn.leaves}. `headgate doctor --live`"
        f" shows the cause, and `headgate explain --class {class_name} --since 10m` shows where requests spend their"
        " time.",
        labels=(("class", class_name), ("objective", objective.name)),
    )
