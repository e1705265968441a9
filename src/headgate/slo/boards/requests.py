"""What becomes of requests: how many, how quickly, who waits, who is turned away?"""

from typing import Final

from headgate.slo.panel import Dashboard, Panel
from headgate.slo.queries import gauge, rate, share, tail
from headgate.slo.recording import BAD_RATIO

OVERVIEW: Final = Dashboard(
    "headgate-overview",
    "Headgate: overview",
    (
        Panel(
            "What is wrong",
            (("max by (pool, cause) (headgate_verdict) == 1", "{{pool}}: {{cause}}"),),
            kind="stat",
            says="The gateway's own verdict of each pool. `headgate doctor --live` has the evidence.",
        ),
        Panel(
            "By which pattern",
            (("max by (pool, incident) (headgate_incident) == 1", "{{pool}}: {{incident}}"),),
            kind="stat",
            says="Each pattern has a page of its name under docs/operations/runbooks.",
        ),
        Panel(
            "How fast the month's allowance is used up",
            (
                (
                    f"{BAD_RATIO}1h / (1 - max by (class, objective) (headgate_objective_ratio))",
                    "{{class}} {{objective}}",
                ),
            ),
            says="Above 1 the promise of the month is in danger, above 14.4 somebody is woken. Needs `headgate rules`.",
        ),
        Panel("Requests by ending", (rate("headgate_requests_total", "outcome"),), "reqps"),
        Panel("Requests by class", (rate("headgate_requests_total", "class"),), "reqps"),
        Panel(
            "Good requests",
            (rate("headgate_goodput_requests_total", "class"),),
            "reqps",
            says="Those that completed within every target of their class.",
        ),
        Panel(
            "Time to first token",
            tuple(tail("headgate_time_to_first_token_seconds", each, "class") for each in (0.5, 0.9, 0.95, 0.99)),
            "s",
        ),
        Panel(
            "Whole answers",
            tuple(tail("headgate_request_duration_seconds", each, "class") for each in (0.5, 0.9, 0.95, 0.99)),
            "s",
        ),
        Panel(
            "Between tokens",
            tuple(tail("headgate_inter_token_latency_seconds", each, "class") for each in (0.5, 0.99)),
            "s",
        ),
        Panel(
            "Time to first token by size of prompt, p99",
            (tail("headgate_time_to_first_token_seconds", 0.99, "class", "size"),),
            "s",
        ),
        Panel("Tokens", (rate("headgate_tokens_total", "class", "direction"),), "short"),
        Panel(
            "Promises kept",
            (share("headgate_objective_good_total", "headgate_objective_requests_total", "class", "objective"),),
            "percentunit",
        ),
    ),
)

QUEUES: Final = Dashboard(
    "headgate-queues",
    "Headgate: queues and fairness",
    (
        Panel("Waiting by class", (gauge("headgate_queue_depth", "class"),)),
        Panel("Waiting by tenant", (gauge("headgate_tenant_queue_depth", "tenant"),)),
        Panel(
            "Wait in our queue",
            tuple(tail("headgate_queue_wait_seconds", each, "class") for each in (0.5, 0.95, 0.99)),
            "s",
        ),
        Panel("Let in", (rate("headgate_requests_admitted_total", "class"),), "reqps"),
        Panel(
            "Turned away",
            (rate("headgate_requests_total", "class", "outcome", only='{outcome!~"completed|cancelled"}'),),
            "reqps",
        ),
        Panel("Requests by tenant", (rate("headgate_tenant_requests_total", "tenant", "outcome"),), "reqps"),
        Panel("Tokens by tenant", (rate("headgate_tenant_tokens_total", "tenant", "direction"),)),
        Panel(
            "Given up",
            (gauge("headgate_ladder_level", "pool", of="max"),),
            says="The ladder's level, from 0 to 6: how much of quality is given up under overload.",
        ),
        Panel("Refused by rank", (gauge("headgate_shed_fraction", "pool", of="max"),), "percentunit"),
        Panel("Degraded", (rate("headgate_requests_degraded_total", "class"),), "reqps"),
        Panel("Held for an endpoint to start", (gauge("headgate_hold_depth", "class", "pool"),)),
        Panel("Held so far", (rate("headgate_requests_held_total", "class", "pool"),), "reqps"),
    ),
)
