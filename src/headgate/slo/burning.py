"""When are so many requests of a class bad that its promise for the month is in danger?

By how fast the month's allowance is being used up, over a long window, so that a hiccup wakes nobody, and over a short
one, so that the alert ends soon after the trouble has. Under a handful of bad requests nobody is told at all: where few
ask, one bad answer is a large share of them.
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
"""Where little is promised, fourteen times what is allowed is more than there is; half of all is bad enough."""


@dataclass(frozen=True, slots=True)
class Burn:
    alert: str
    factor: float
    long_s: int
    short_s: int
    severity: Severity
    leaves: str
    """What is left of the month's allowance at this rate."""


BURNS: Final = (
    Burn("HeadgateObjectiveBurnsFast", 14.4, HOUR, 5 * MINUTE, Severity.PAGE, "the month's allowance lasts two days"),
    Burn("HeadgateObjectiveBurns", 6, 6 * HOUR, 30 * MINUTE, Severity.PAGE, "the month's allowance lasts five days"),
    Burn("HeadgateObjectiveBurnsSlowly", 1, 3 * DAY, 6 * HOUR, Severity.TICKET, "nothing of the month's will be left"),
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
        f"{percent(objective.ppm)} are promised; at this rate {burn.leaves}. Ask `headgate doctor --live` what is"
        f" wrong, and `headgate explain --class {class_name} --since 10m` where requests lose their time.",
        labels=(("class", class_name), ("objective", objective.name)),
    )
