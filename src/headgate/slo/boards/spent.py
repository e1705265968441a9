"""Where do time and money go?"""

from typing import Final

from headgate.slo.panel import Dashboard, Panel
from headgate.slo.queries import gauge, rate, share, tail
from headgate.slo.recording import COST_PER_1K, COST_PER_REQUEST

_MEAN: Final = (
    "sum by (class, stage) (rate(headgate_stage_seconds_sum[5m]))"
    " / (sum by (class, stage) (rate(headgate_stage_seconds_count[5m])) > 0)"
)

STAGES: Final = Dashboard(
    "headgate-stages",
    "Headgate: stages and budgets",
    (
        Panel(
            "Time by stage, mean",
            ((_MEAN, "{{class}} {{stage}}"),),
            "s",
            width=12,
        ),
        Panel("Time by stage, p99", (tail("headgate_stage_seconds", 0.99, "class", "stage"),), "s", width=12),
        Panel(
            "Over budget",
            (rate("headgate_stage_over_budget_total", "class", "stage"),),
            "reqps",
            says="Which stage spends the time. `headgate explain --class NAME --since 10m` shows the requests.",
            width=12,
        ),
        Panel(
            "Budgets", (gauge("headgate_stage_budget_seconds", "class", "stage", of="max"),), "s", kind="stat", width=12
        ),
        Panel(
            "Too late, by the stage that took the most",
            (rate("headgate_late_requests_total", "class", "goal", "stage"),),
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
            "Dollars an hour by class",
            (("3600 * " + rate("headgate_cost_usd_total", "class")[0], "{{class}}"),),
            "currencyUSD",
        ),
        Panel(
            "Dollars an hour by tenant",
            (("3600 * " + rate("headgate_tenant_cost_usd_total", "tenant")[0], "{{tenant}}"),),
            "currencyUSD",
        ),
        Panel(
            "1,000 tokens",
            (
                (f"{COST_PER_1K}1h", "{{class}}"),
                (gauge("headgate_cost_objective_usd_per_1k_tokens", "class", of="max")[0], "{{class}} promised"),
            ),
            "currencyUSD",
            says="Needs `headgate rules`.",
        ),
        Panel("A request", ((f"{COST_PER_REQUEST}1h", "{{class}}"),), "currencyUSD", says="Needs `headgate rules`."),
        Panel(
            "Useful tokens",
            (share("headgate_useful_tokens_total", "headgate_tokens_total", "class"),),
            "percentunit",
            says="The rest went into attempts that answered nobody.",
        ),
    ),
)
