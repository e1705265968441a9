"""Dashboards for stage durations and cost."""

from typing import Final

from headgate.slo.panel import Dashboard, Panel
from headgate.slo.queries import gauge, histogram_quantile, rate, ratio
from headgate.slo.recording_rules import COST_PER_1K, COST_PER_REQUEST

_MEAN_STAGE_DURATION: Final = (
    "sum by (class, stage) (rate(headgate_stage_duration_seconds_sum[5m]))"
    " / (sum by (class, stage) (rate(headgate_stage_duration_seconds_count[5m])) > 0)"
)

STAGES: Final = Dashboard(
    "headgate-stages",
    "Headgate: stages",
    (
        Panel(
            "Time by stage, mean",
            ((_MEAN_STAGE_DURATION, "{{class}} {{stage}}"),),
            "s",
            width=12,
        ),
        Panel(
            "Time by stage, p99",
            (histogram_quantile("headgate_stage_duration_seconds", 0.99, "class", "stage"),),
            "s",
            width=12,
        ),
        Panel(
            "Stages over budget",
            (rate("headgate_stage_over_budget_total", "class", "stage"),),
            "reqps",
            description="Requests over a stage budget. `headgate explain --class NAME --since 10m` lists them.",
            width=12,
        ),
        Panel(
            "Stage budgets",
            (gauge("headgate_stage_budget_seconds", "class", "stage", aggregation="max"),),
            "s",
            kind="stat",
            width=12,
        ),
        Panel(
            "Late requests by slowest stage",
            (rate("headgate_requests_late_total", "class", "target", "stage"),),
            "reqps",
            width=12,
        ),
    ),
)

COST: Final = Dashboard(
    "headgate-cost",
    "Headgate: cost",
    (
        Panel(
            "Cost per hour by class",
            (("3600 * " + rate("headgate_cost_usd_total", "class")[0], "{{class}}"),),
            "currencyUSD",
        ),
        Panel(
            "Cost per hour by tenant",
            (("3600 * " + rate("headgate_tenant_cost_usd_total", "tenant")[0], "{{tenant}}"),),
            "currencyUSD",
        ),
        Panel(
            "Cost per 1,000 tokens",
            (
                (f"{COST_PER_1K}1h", "{{class}}"),
                (
                    gauge("headgate_cost_objective_usd_per_1k_tokens", "class", aggregation="max")[0],
                    "{{class}} objective",
                ),
            ),
            "currencyUSD",
            description="Requires recording rules.",
        ),
        Panel(
            "Cost per request",
            ((f"{COST_PER_REQUEST}1h", "{{class}}"),),
            "currencyUSD",
            description="Requires recording rules.",
        ),
        Panel(
            "Goodput token ratio",
            (ratio("headgate_goodput_tokens_total", "headgate_tokens_total", "class"),),
            "percentunit",
            description="Share of tokens used by attempts that completed a request.",
        ),
    ),
)
