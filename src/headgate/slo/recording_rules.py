"""Recording rules, used by alerts, dashboards and reports.

The name of a recorded series consists of its grouping labels, its metric and its window.
"""

from collections.abc import Iterator
from typing import Final

from headgate.slo.alert import Rule, recording_rule
from headgate.slo.durations import DAY, HOUR, MINUTE, WEEK, DurationFormat, duration_text
from headgate.telemetry.meter_types import UNAVAILABLE_OUTCOMES

QUANTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))
BY_CLASS: Final = (
    "headgate_queue_wait_seconds",
    "headgate_time_to_first_token_seconds",
    "headgate_inter_token_latency_seconds",
    "headgate_request_duration_seconds",
)
BY_PROMPT_SIZE: Final = ("headgate_time_to_first_token_seconds", "headgate_request_duration_seconds")
"""Metrics that have a prompt size label."""
WINDOWS_S: Final = (5 * MINUTE, 30 * MINUTE, HOUR, 6 * HOUR, 3 * DAY)
"""Burn-rate windows."""
COST_WINDOWS_S: Final = (HOUR, WEEK)

BAD_RATIO: Final = "class_objective:headgate_objective:bad_ratio_"
BAD_REQUESTS: Final = "class_objective:headgate_objective:bad_requests_"
COST_PER_1K: Final = "class:headgate_cost_usd:per_1k_tokens_"
COST_PER_REQUEST: Final = "class:headgate_cost_usd:per_request_"


def latency_rules(length: DurationFormat) -> Iterator[Rule]:
    """Latency percentiles by class, and by class and prompt size."""
    for level, labels, metrics in (
        ("class", "class", BY_CLASS),
        ("class_prompt_size", "class, prompt_size", BY_PROMPT_SIZE),
    ):
        for metric in metrics:
            buckets = f"sum by ({labels}, le) (rate({metric}_bucket[{length(5 * MINUTE)}]))"
            for short, quantile in QUANTILES:
                yield recording_rule(f"{level}:{metric}:{short}_5m", f"histogram_quantile({quantile}, {buckets})")


def objective_rules(length: DurationFormat) -> Iterator[Rule]:
    for seconds in WINDOWS_S:
        over = length(seconds)
        asked = f"sum by (class, objective) (increase(headgate_objective_requests_total[{over}]))"
        good = f"sum by (class, objective) (increase(headgate_objective_good_requests_total[{over}]))"
        yield recording_rule(BAD_REQUESTS + duration_text(seconds), f"{asked} - {good}")
        yield recording_rule(BAD_RATIO + duration_text(seconds), f"1 - {good} / ({asked} > 0)")


def cost_rules(length: DurationFormat) -> Iterator[Rule]:
    for seconds in COST_WINDOWS_S:
        over = length(seconds)
        spent = f"sum by (class) (rate(headgate_cost_usd_total[{over}]))"
        tokens = f"sum by (class) (rate(headgate_tokens_total[{over}]))"
        requests = f'sum by (class) (rate(headgate_requests_total{{outcome="completed"}}[{over}]))'
        yield recording_rule(COST_PER_1K + duration_text(seconds), f"1000 * {spent} / ({tokens} > 0)")
        yield recording_rule(COST_PER_REQUEST + duration_text(seconds), f"{spent} / ({requests} > 0)")


def goodput_rules(length: DurationFormat) -> Iterator[Rule]:
    over = length(5 * MINUTE)
    useful = f"sum by (class) (rate(headgate_goodput_tokens_total[{over}]))"
    tokens = f"sum by (class) (rate(headgate_tokens_total[{over}]))"
    yield recording_rule(
        "class:headgate_goodput:rate_5m", f"sum by (class) (rate(headgate_goodput_requests_total[{over}]))"
    )
    yield recording_rule("class:headgate_goodput_tokens:ratio_5m", f"{useful} / ({tokens} > 0)")
    outcomes = "|".join(sorted(each.value for each in UNAVAILABLE_OUTCOMES))
    failed = f'sum by (class) (rate(headgate_requests_total{{outcome=~"{outcomes}"}}[{over}]))'
    every = f"sum by (class) (rate(headgate_requests_total[{over}]))"
    yield recording_rule("class:headgate_errors:ratio_5m", f"{failed} / ({every} > 0)")
