"""Dashboard of endpoints and engines."""

from typing import Final

from headgate.slo.panel import Dashboard, Panel
from headgate.slo.queries import gauge, rate, share, tail

FLEET: Final = Dashboard(
    "headgate-fleet",
    "Headgate: fleet and engines",
    (
        Panel("Endpoints", (gauge("headgate_endpoints", "pool", "state", of="max"),)),
        Panel(
            "Desired endpoints and demand",
            (
                (gauge("headgate_endpoints_wanted", "pool", of="max")[0], "{{pool}} desired"),
                (gauge("headgate_demand_endpoints", "pool", of="max")[0], "{{pool}} demand"),
            ),
        ),
        Panel(
            "Demand / capacity",
            (gauge("headgate_demand_over_capacity", "pool", of="max"),),
            says="The queue grows while the ratio is above 1.",
        ),
        Panel(
            "Scaling correction",
            (gauge("headgate_scaling_correction_ratio", "pool", of="max"),),
            says="Far from 1, the configured speed of the pool is wrong.",
        ),
        Panel("Attempts in flight", (gauge("headgate_in_flight", "pool", "endpoint"),)),
        Panel(
            "Engine requests (running, waiting)",
            (
                (gauge("headgate_engine_running", "pool", "endpoint", of="max")[0], "{{endpoint}} running"),
                (gauge("headgate_engine_waiting", "pool", "endpoint", of="max")[0], "{{endpoint}} waiting"),
            ),
        ),
        Panel("KV cache usage", (gauge("headgate_engine_kv_used_ratio", "pool", "endpoint", of="max"),), "percentunit"),
        Panel(
            "Prefix cache hit ratio",
            (share("headgate_engine_prefix_hits_total", "headgate_engine_prefix_queries_total", "pool", "endpoint"),),
            "percentunit",
        ),
        Panel("Preemptions", (rate("headgate_engine_preemptions_total", "pool", "endpoint"),)),
        Panel(
            "GPU utilization", (gauge("headgate_gpu_utilisation_ratio", "pool", "endpoint", of="max"),), "percentunit"
        ),
        Panel(
            "GPU memory",
            (
                (gauge("headgate_gpu_memory_used_bytes", "pool", "endpoint", of="max")[0], "{{endpoint}} used"),
                (gauge("headgate_gpu_memory_total_bytes", "pool", "endpoint", of="max")[0], "{{endpoint}} total"),
            ),
            "bytes",
        ),
        Panel("Attempts by ending", (rate("headgate_attempts_total", "pool", "ending"),), "reqps"),
        Panel("Attempts by fault", (rate("headgate_attempt_faults_total", "pool", "fault"),), "reqps"),
        Panel("Implausible usage reports", (rate("headgate_usage_disbelieved_total", "pool"),), "reqps"),
        Panel(
            "Retries, hedges and ejections",
            (
                (rate("headgate_retries_total", "pool")[0], "{{pool}} retries"),
                (rate("headgate_hedges_total", "pool")[0], "{{pool}} hedges"),
                (rate("headgate_endpoint_ejections_total", "pool")[0], "{{pool}} ejections"),
            ),
        ),
        Panel(
            "Endpoint start by phase, p90",
            (
                tail("headgate_endpoint_start_seconds", 0.9, "pool", "phase"),
                (tail("headgate_endpoint_warming_seconds", 0.9, "pool")[0], "{{pool}} until ready"),
            ),
            "s",
        ),
        Panel("Endpoints starting", (gauge("headgate_endpoints_starting", "pool", "phase", of="max"),)),
        Panel(
            "Cold start",
            (
                (tail("headgate_cold_start_seconds", 0.9, "pool")[0], "{{pool}} p90"),
                (
                    gauge("headgate_endpoint_start_age_seconds", "pool", of="max")[0],
                    "{{pool}} oldest start in progress",
                ),
                (gauge("headgate_scaling_lead_seconds", "pool", of="max")[0], "{{pool}} lead time"),
            ),
            "s",
        ),
        Panel("Endpoint drain time, p90", (tail("headgate_endpoint_drain_seconds", 0.9, "pool"),), "s"),
        Panel(
            "Batch size",
            (
                (tail("headgate_batch_size", 0.5, "pool")[0], "{{pool}} inputs, median"),
                (tail("headgate_batch_size", 0.99, "pool")[0], "{{pool}} inputs, p99"),
            ),
        ),
        Panel("Batch wait, p99", (tail("headgate_batch_wait_seconds", 0.99, "pool"),), "s"),
        Panel("Quarantined requests", (gauge("headgate_quarantined_requests", of="max"),)),
        Panel("Prefix index size", (gauge("headgate_prefix_hashes", "pool", of="max"),)),
        Panel(
            "Missing engine metrics",
            (gauge("headgate_endpoint_signal_missing", "endpoint", "signal", of="max"),),
        ),
        Panel("Engine metrics age", (gauge("headgate_endpoint_telemetry_age_seconds", "endpoint", of="min"),), "s"),
    ),
)
