"""Dashboard for endpoints and engines."""

from typing import Final

from headgate.slo.panel import Dashboard, Panel
from headgate.slo.queries import gauge, histogram_quantile, rate, ratio

FLEET: Final = Dashboard(
    "headgate-fleet",
    "Headgate: fleet and engines",
    (
        Panel("Endpoints", (gauge("headgate_endpoints", "pool", "state", aggregation="max"),)),
        Panel(
            "Desired endpoints and demand",
            (
                (gauge("headgate_endpoints_desired", "pool", aggregation="max")[0], "{{pool}} desired"),
                (gauge("headgate_demand_endpoints", "pool", aggregation="max")[0], "{{pool}} demand"),
            ),
        ),
        Panel(
            "Demand / capacity",
            (gauge("headgate_demand_to_capacity_ratio", "pool", aggregation="max"),),
            description="The queue grows while the ratio is above 1.",
        ),
        Panel(
            "Scaling correction",
            (gauge("headgate_scaling_correction_ratio", "pool", aggregation="max"),),
            description="A value far from 1 means that the pool's configured speed is wrong.",
        ),
        Panel(
            "Measured / configured time",
            (
                gauge(
                    "headgate_endpoint_measured_to_configured_time_ratio", "pool", "endpoint", "part", aggregation="max"
                ),
            ),
            description="Above 1, the endpoint is slower than the pool's configured speed.",
        ),
        Panel("Attempts in flight", (gauge("headgate_attempts_in_flight", "pool", "endpoint"),)),
        Panel("Attempts in flight by adapter", (gauge("headgate_adapter_attempts_in_flight", "pool", "adapter"),)),
        Panel(
            "Engine requests (running, waiting)",
            (
                (
                    gauge("headgate_engine_requests_running", "pool", "endpoint", aggregation="max")[0],
                    "{{endpoint}} running",
                ),
                (
                    gauge("headgate_engine_requests_waiting", "pool", "endpoint", aggregation="max")[0],
                    "{{endpoint}} waiting",
                ),
            ),
        ),
        Panel(
            "KV cache usage",
            (gauge("headgate_engine_kv_cache_usage_ratio", "pool", "endpoint", aggregation="max"),),
            "percentunit",
        ),
        Panel(
            "Prefix cache hit ratio",
            (
                ratio(
                    "headgate_engine_prefix_cache_hits_total",
                    "headgate_engine_prefix_cache_queries_total",
                    "pool",
                    "endpoint",
                ),
            ),
            "percentunit",
        ),
        Panel("Preemptions", (rate("headgate_engine_preemptions_total", "pool", "endpoint"),)),
        Panel(
            "GPU utilization",
            (gauge("headgate_gpu_utilization_ratio", "pool", "endpoint", aggregation="max"),),
            "percentunit",
        ),
        Panel(
            "GPU memory",
            (
                (
                    gauge("headgate_gpu_memory_used_bytes", "pool", "endpoint", aggregation="max")[0],
                    "{{endpoint}} used",
                ),
                (
                    gauge("headgate_gpu_memory_total_bytes", "pool", "endpoint", aggregation="max")[0],
                    "{{endpoint}} total",
                ),
            ),
            "bytes",
        ),
        Panel("Attempts by ending", (rate("headgate_attempts_total", "pool", "ending"),), "reqps"),
        Panel("Attempts by fault", (rate("headgate_attempt_faults_total", "pool", "fault"),), "reqps"),
        Panel("Implausible usage reports", (rate("headgate_usage_implausible_total", "pool"),), "reqps"),
        Panel(
            "Retries, hedges and ejections",
            (
                (rate("headgate_retries_total", "pool")[0], "{{pool}} retries"),
                (rate("headgate_hedges_total", "pool")[0], "{{pool}} hedges"),
                (rate("headgate_endpoint_ejections_total", "pool")[0], "{{pool}} ejections"),
            ),
        ),
        Panel(
            "Endpoint start duration by phase, p90",
            (
                histogram_quantile("headgate_endpoint_start_phase_seconds", 0.9, "pool", "phase"),
                (histogram_quantile("headgate_endpoint_warming_seconds", 0.9, "pool")[0], "{{pool}} until ready"),
            ),
            "s",
        ),
        Panel("Endpoints starting", (gauge("headgate_endpoints_starting", "pool", "phase", aggregation="max"),)),
        Panel(
            "Cold start",
            (
                (histogram_quantile("headgate_cold_start_seconds", 0.9, "pool")[0], "{{pool}} p90"),
                (
                    gauge("headgate_endpoint_start_age_seconds", "pool", aggregation="max")[0],
                    "{{pool}} oldest start in progress",
                ),
                (gauge("headgate_scaling_lead_time_seconds", "pool", aggregation="max")[0], "{{pool}} lead time"),
            ),
            "s",
        ),
        Panel("Endpoint drain time, p90", (histogram_quantile("headgate_endpoint_drain_seconds", 0.9, "pool"),), "s"),
        Panel(
            "Batch size",
            (
                (histogram_quantile("headgate_batch_size", 0.5, "pool")[0], "{{pool}} inputs, median"),
                (histogram_quantile("headgate_batch_size", 0.99, "pool")[0], "{{pool}} inputs, p99"),
            ),
        ),
        Panel("Batch wait, p99", (histogram_quantile("headgate_batch_wait_seconds", 0.99, "pool"),), "s"),
        Panel("Quarantined requests", (gauge("headgate_quarantined_requests", aggregation="max"),)),
        Panel("Prefix index size", (gauge("headgate_prefix_index_bytes", "pool", aggregation="max"),), unit="bytes"),
        Panel(
            "Missing engine metrics",
            (gauge("headgate_engine_metric_missing", "endpoint", "metric", aggregation="max"),),
        ),
        Panel(
            "Engine metrics age",
            (gauge("headgate_engine_metrics_age_seconds", "endpoint", aggregation="min"),),
            "s",
        ),
    ),
)
