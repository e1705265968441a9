"""Alerts on missed cost objectives and on rising cost per token or request."""

from collections.abc import Iterator
from typing import Final

from headgate.slo.alert import Alert, Severity
from headgate.slo.lengths import HOUR, MINUTE, WEEK, Length, name
from headgate.slo.promises import ClassPromises
from headgate.slo.recording import COST_PER_1K, COST_PER_REQUEST

DRIFT: Final = 1.25
"""Ratio of the last hour's cost to the weekly average."""
REQUESTS_MIN: Final = 100
"""Within an hour. An average of fewer requests is not meaningful."""


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
            f"The objective is at most ${promised:.10g} on the hourly average. `headgate cost drift` shows what"
            f" changed, and `headgate cost --by pool --class {promises.name}` shows the cost of each pool.",
            lasting_s=30 * MINUTE,
            labels=(("class", promises.name),),
        )


def drift_alerts(length: Length) -> Iterator[Alert]:
    """Alerts on the cost per token and per request, which do not depend on the amount of traffic.

    In the first week, the average covers the time since the start. Later, a cost that was as high at the same hour a
    week ago, such as a nightly job, does not count.
    """
    hour, week = name(HOUR), name(WEEK)
    told = (
        "More traffic alone cannot cause this. `headgate cost drift` shows whether tokens, prices or waste increased."
    )
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
            f"class {{{{ $labels.class }}}}: {what} {{{{ $value | humanize }}}} times the weekly average",
            told,
            lasting_s=15 * MINUTE,
        )


def _enough(length: Length) -> str:
    completed = f'headgate_requests_total{{outcome="completed"}}[{length(HOUR)}]'
    return f" and on (class) sum by (class) (increase({completed})) >= {REQUESTS_MIN}"
