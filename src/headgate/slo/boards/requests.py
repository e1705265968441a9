"""Dashboards for request results, latency, queues and fairness."""

from typing import Final

from headgate.slo.panel import Dashboard, Panel
from headgate.slo.queries import gauge, histogram_quantile, rate, ratio
from headgate.slo.recording_rules import BAD_RATIO

OVERVIEW: Final = Dashboard(
    "headgate-overview",
    "Headgate: overview",
    (
        Panel(
            "Verdict",
            (("max by (pool, cause) (headgate_verdict) == 1", "{{pool}}: {{cause}}"),),
            kind="stat",
            description="The gateway's verdict on each pool. `headgate doctor --live` shows the evidence.",
        ),
        Panel(
            "Incident",
            (("max by (pool, incident) (headgate_incident) == 1", "{{pool}}: {{incident}}"),),
            kind="stat",
            description="Each incident has a runbook at /docs/operations/runbooks/INCIDENT on the admin listener.",
        ),
        Panel(
            "Burn rate (1 h)",
            (
                (
                    f"{BAD_RATIO}1h / (1 - max by (class, objective) (headgate_objective_target_ratio))",
                    "{{class}} {{objective}}",
                ),
            ),
            description="Above 1, the error budget runs out early; above 14.4, an alert fires."
            " Requires recording rules.",
        ),
        Panel("Requests by outcome", (rate("headgate_requests_total", "outcome"),), "reqps"),
        Panel("Requests by class", (rate("headgate_requests_total", "class"),), "reqps"),
        Panel(
            "Goodput",
            (rate("headgate_goodput_requests_total", "class"),),
            "reqps",
            description="Requests completed within all latency targets of their class.",
        ),
        Panel(
            "Time to first token",
            tuple(
                histogram_quantile("headgate_time_to_first_token_seconds", each, "class")
                for each in (0.5, 0.9, 0.95, 0.99)
            ),
            "s",
        ),
        Panel(
            "Request duration",
            tuple(
                histogram_quantile("headgate_request_duration_seconds", each, "class")
                for each in (0.5, 0.9, 0.95, 0.99)
            ),
            "s",
        ),
        Panel(
            "Inter-token latency",
            tuple(histogram_quantile("headgate_inter_token_latency_seconds", each, "class") for each in (0.5, 0.99)),
            "s",
        ),
        Panel(
            "Time to first token by prompt size, p99",
            (histogram_quantile("headgate_time_to_first_token_seconds", 0.99, "class", "prompt_size"),),
            "s",
        ),
        Panel("Tokens", (rate("headgate_tokens_total", "class", "direction"),), "short"),
        Panel(
            "Objective attainment",
            (
                ratio(
                    "headgate_objective_good_requests_total", "headgate_objective_requests_total", "class", "objective"
                ),
            ),
            "percentunit",
        ),
    ),
)

QUEUES: Final = Dashboard(
    "headgate-queues",
    "Headgate: queues and fairness",
    (
        Panel("Queue depth by class", (gauge("headgate_queue_depth", "class"),)),
        Panel("Queue depth by tenant", (gauge("headgate_tenant_queue_depth", "tenant"),)),
        Panel(
            "Queue wait",
            tuple(histogram_quantile("headgate_queue_wait_seconds", each, "class") for each in (0.5, 0.95, 0.99)),
            "s",
        ),
        Panel("Requests admitted", (rate("headgate_requests_admitted_total", "class"),), "reqps"),
        Panel(
            "Requests rejected or failed",
            (rate("headgate_requests_total", "class", "outcome", matchers='{outcome!~"completed|cancelled"}'),),
            "reqps",
        ),
        Panel("Requests by tenant", (rate("headgate_tenant_requests_total", "tenant", "result"),), "reqps"),
        Panel("Requests by route", (rate("headgate_route_requests_total", "model", "route", "result"),), "reqps"),
        Panel(
            "Requests selected for copying",
            (rate("headgate_mirrored_requests_total", "model", "route", "result"),),
            "reqps",
            description="Completed, failed and stopped copies, and the reasons for which no copy was sent.",
        ),
        Panel("Tokens by tenant", (rate("headgate_tenant_tokens_total", "tenant", "direction"),)),
        Panel(
            "Degradation level",
            (gauge("headgate_degradation_level", "pool", aggregation="max"),),
            description="From 0 (none) to 6. Under overload, each level reduces quality further.",
        ),
        Panel("Shed ratio", (gauge("headgate_shed_ratio", "pool", aggregation="max"),), "percentunit"),
        Panel("Requests degraded", (rate("headgate_requests_degraded_total", "class"),), "reqps"),
        Panel("Requests held (cold start)", (gauge("headgate_hold_depth", "class", "pool"),)),
        Panel("Requests held per second", (rate("headgate_requests_held_total", "class", "pool"),), "reqps"),
    ),
)
