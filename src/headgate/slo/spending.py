"""When does a class cost more than was promised, or more than it used to without anybody asking more?"""

from collections.abc import Iterator
from typing import Final

from headgate.slo.alert import Alert, Severity
from headgate.slo.lengths import HOUR, MINUTE, WEEK, Length, name
from headgate.slo.promises import ClassPromises
from headgate.slo.recording import COST_PER_1K, COST_PER_REQUEST

DRIFT: Final = 1.25
"""So many times what the week cost on the average is worth a look."""
REQUESTS_MIN: Final = 100
"""Within an hour. Of fewer the average says little."""


def cost_objective_alert(promises: ClassPromises, length: Length) -> Iterator[Alert]:
    promised = promises.cost_usd_per_1k_tokens
    if promised is not None:
        which = f'{{class="{promises.name}"}}'
        yield Alert(
            "HeadgateCostObjectiveMissed",
            f"{COST_PER_1K}{name(HOUR)}{which} > {promised:.10g}{_enough(length)}",
            Severity.TICKET,
            "cost_objective",
            f'class {promises.name}: 1,000 tokens cost ${{{{ $value | printf "%.4f" }}}}',
            f"On the average of an hour ${promised:.10g} are promised. `headgate cost drift` says what became dearer;"
            f" `headgate cost --by pool --class {promises.name}` where it is spent.",
            lasting_s=30 * MINUTE,
            labels=(("class", promises.name),),
        )


def drift_alerts(length: Length) -> Iterator[Alert]:
    """Of one token, one request: how many are asked for is not in it, so no traffic raises them, by day or by night.

    Where a week is not yet known, its average is that of the time since the start, so that a gateway is watched from
    its first day on. What was as dear at the same hour a week ago, such as the work of every night, is nothing new.
    """
    hour, week = name(HOUR), name(WEEK)
    told = "More traffic alone does not do this. `headgate cost drift` says which of tokens, prices and waste it is."
    for alert, series, what in (
        ("HeadgateTokensCostMore", COST_PER_1K, "1,000 tokens cost"),
        ("HeadgateRequestsCostMore", COST_PER_REQUEST, "a request costs"),
    ):
        yield Alert(
            alert,
            f"{series}{hour} / {series}{week} > {DRIFT:g}{_enough(length)}"
            f" unless {series}{hour} / ({series}{hour} offset {length(WEEK)}) <= {DRIFT:g}",
            Severity.TICKET,
            "cost_drift",
            f"class {{{{ $labels.class }}}}: {what} {{{{ $value | humanize }}}} times what the week's did",
            told,
            lasting_s=15 * MINUTE,
        )


def _enough(length: Length) -> str:
    completed = f'headgate_requests_total{{outcome="completed"}}[{length(HOUR)}]'
    return f" and on (class) sum by (class) (increase({completed})) >= {REQUESTS_MIN}"
