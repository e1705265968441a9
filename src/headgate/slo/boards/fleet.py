"""How are the endpoints, and the engines on them?"""

from typing import Final

from headgate.slo.panel import Dashboard, Panel
from headgate.slo.queries import gauge, rate, share, tail

FLEET: Final = Dashboard(
    "headgate-fleet",
    "Headgate: fleet and engines",
    (
        Panel("Endpoints", (gauge("headgate_endpoints", "pool", "state", of="max"),)),
        Panel(
            "Wanted, and asked for",
            (
                (gauge("headgate_endpoints_wanted", "pool", of="max")[0], "{{pool}} wanted"),
                (gauge("headgate_demand_endpoints", "pool", of="max")[0], "{{pool}} asked for"),
            ),
        ),
        Panel(
            "Demand over capacity",
            (gauge("headgate_demand_over_capacity", "pool", of="max"),),
            says="Above 1 the queue grows.",
        ),
        Panel(
            "Correction by attainment",
            (gauge("headgate_scaling_correction_ratio", "pool", of="max"),),
            says="Far from 1, the declared speed of the pool is wrong.",
        ),
        Panel("In flight", (gauge("headgate_in_flight", "pool", "endpoint"),)),
        Panel(
            "In the engines",
            (
                (gauge("headgate_engine_running", "pool", "endpoint", of="max")[0], "{{endpoint}} runs"),
                (gauge("headgate_engine_waiting", "pool", "endpoint", of="max")[0], "{{endpoint}} waits"),
            ),
        ),
        Panel("KV cache", (gauge("headgate_engine_kv_used_ratio", "pool", "endpoint", of="max"),), "percentunit"),
        Panel(
            "Found in prefix caches",
            (share("headgate_engine_prefix_hits_total", "headgate_engine_prefix_queries_total", "pool", "endpoint"),),
            "percentunit",
        ),
        Panel("Preemptions", (rate("headgate_engine_preemptions_total", "pool", "endpoint"),)),
        Panel("GPU use", (gauge("headgate_gpu_utilisation_ratio", "pool", "endpoint", of="max"),), "percentunit"),
        Panel(
            "GPU memory",
            (
                (gauge("headgate_gpu_memory_used_bytes", "pool", "endpoint", of="max")[0], "{{endpoint}} used"),
                (gauge("headgate_gpu_memory_total_bytes", "pool", "endpoint", of="max")[0], "{{endpoint}} of"),
            ),
            "bytes",
        ),
        Panel("Attempts by ending", (rate("headgate_attempts_total", "pool", "ending"),), "reqps"),
        Panel("Attempts by fault", (rate("headgate_attempt_faults_total", "pool", "fault"),), "reqps"),
        Panel("Impossible usage reports", (rate("headgate_usage_disbelieved_total", "pool"),), "reqps"),
        Panel(
            "Retries, hedges and ejections",
            (
                (rate("headgate_retries_total", "pool")[0], "{{pool}} retries"),
                (rate("headgate_hedges_total", "pool")[0], "{{pool}} hedges"),
                (rate("headgate_endpoint_ejections_total", "pool")[0], "{{pool}} ejections"),
            ),
        ),
        Panel(
            "Starts by phase, p90",
            (
                tail("headgate_endpoint_start_seconds", 0.9, "pool", "phase"),
                (tail("headgate_endpoint_warming_seconds", 0.9, "pool")[0], "{{pool}} until it serves"),
            ),
            "s",
        ),
        Panel("Starts under way", (gauge("headgate_endpoints_starting", "pool", "phase", of="max"),)),
        Panel(
            "Cold start",
            (
                (tail("headgate_cold_start_seconds", 0.9, "pool")[0], "{{pool}} p90"),
                (gauge("headgate_endpoint_start_age_seconds", "pool", of="max")[0], "{{pool}} oldest under way"),
                (gauge("headgate_scaling_lead_seconds", "pool", of="max")[0], "{{pool}} lead"),
            ),
            "s",
        ),
        Panel("Drains, p90", (tail("headgate_endpoint_drain_seconds", 0.9, "pool"),), "s"),
        Panel(
            "Batches",
            (
                (tail("headgate_batch_size", 0.5, "pool")[0], "{{pool}} inputs, median"),
                (tail("headgate_batch_size", 0.99, "pool")[0], "{{pool}} inputs, p99"),
            ),
        ),
        Panel("Waiting for company", (tail("headgate_batch_wait_seconds", 0.99, "pool"),), "s"),
        Panel("Quarantined requests", (gauge("headgate_quarantined_requests", of="max"),)),
        Panel("Beginnings known", (gauge("headgate_prefix_hashes", "pool", of="max"),)),
        Panel(
            "What engines do not tell",
            (gauge("headgate_endpoint_signal_missing", "endpoint", "signal", of="max"),),
        ),
        Panel(
            "Since they told their load", (gauge("headgate_endpoint_telemetry_age_seconds", "endpoint", of="min"),), "s"
        ),
    ),
)
