"""Alerts on missed cost objectives and on rising cost per token or request."""

from collections.abc import Iterator
from typing import Final

from headgate.slo.alert import Alert, Severity
from headgate.slo.durations import HOUR, MINUTE, WEEK, DurationFormat, duration_text
from headgate.slo.objectives import ClassObjectives
from headgate.slo.recording_rules import COST_PER_1K, COST_PER_REQUEST

DRIFT_RATIO_MAX: Final = 1.25
"""Maximum ratio of the last hour's cost to the weekly average."""
REQUESTS_MIN: Final = 100
"""Minimum number of requests in an hour. An average over fewer requests is not meaningful."""


def cost_objective_alert(objectives: ClassObjectives, length: DurationFormat) -> Iterator[Alert]:
    promised = objectives.cost_usd_per_1k_tokens
    if promised is not None:
        which = f'{{class="{objectives.name}"}}'
        yield Alert(
            "HeadgateCostObjectiveMissed",
            f"{COST_PER_1K}{duration_text(HOUR)}{which} > {promised:.10g}{_requests_condition(length)}",
            Severity.TICKET,
            "cost_objective",
            f'class {objectives.name}: 1,000 tokens cost ${{{{ $value | printf "%.4f" }}}}',
            f"The objective is an hourly average of at most ${promised:.10g}. `headgate cost drift` shows what"
            f" changed, and `headgate cost --by pool --class {objectives.name}` shows the cost of each pool.",
            for_s=30 * MINUTE,
            labels=(("class", objectives.name),),
        )


def cost_drift_alerts(length: DurationFormat) -> Iterator[Alert]:
    """Alerts on cost per token and per request, which do not depend on traffic volume.

    In the first week, the average covers the time since the first sample. After that, a cost that was just as high at
    the same hour a week earlier, such as for a nightly job, does not trigger the alert.
    """
    hour, week = duration_text(HOUR), duration_text(WEEK)
    told = (
        "More traffic alone cannot cause this. `headgate cost drift` shows whether tokens, prices or waste increased."
    )
    for alert, series, what in (
        ("HeadgateTokenCostDrift", COST_PER_1K, "1,000 tokens cost"),
        ("HeadgateRequestCostDrift", COST_PER_REQUEST, "a request costs"),
    ):
        yield Alert(
            alert,
            f"{series}{hour} / {series}{week} > {DRIFT_RATIO_MAX:g}{_requests_condition(length)}"
            f" unless {series}{hour} / ({series}{hour} offset {length(WEEK)}) <= {DRIFT_RATIO_MAX:g}",
            Severity.TICKET,
            "cost_drift",
            f"class {{{{ $labels.class }}}}: {what} {{{{ $value | humanize }}}} times the weekly average",
            told,
            for_s=15 * MINUTE,
        )


def _requests_condition(length: DurationFormat) -> str:
    completed = f'headgate_requests_total{{outcome="completed"}}[{length(HOUR)}]'
    return f" and on (class) sum by (class) (increase({completed})) >= {REQUESTS_MIN}"
