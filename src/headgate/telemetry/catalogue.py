"""Catalogue of all metrics: name, kind, labels and help text.

This is the only list of metrics. `exposition.py` creates each family from its row here, `just docs` generates
docs/reference/metrics.md from it, and rules and dashboards are checked against it. To add a metric, add a row.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headgate.telemetry.account_catalogue import ACCOUNTS
from headgate.telemetry.cell_catalogue import CELL
from headgate.telemetry.metric_definition import MetricDefinition, counter, gauge, histogram
from headgate.telemetry.stage_catalogue import STAGES, TRACES
from headgate.telemetry.tls_catalogue import TLS

_SCHEDULER_ONLY: Final = "the process is a scheduler or an island"
_SCALED: Final = "the process is a scheduler or an island and the pool is [scaled](../concepts/scaling.md)"
_STARTS_ENDPOINTS: Final = "the gateway itself starts the pool's endpoints"
_TO_ZERO: Final = (
    "the process is a scheduler or an island and the pool can be [scaled to zero](../concepts/scaling.md#scale-to-zero)"
)

_TRAFFIC: Final = (
    counter(
        "headgate_requests_total",
        "class outcome",
        "Finished requests by outcome.",
        "Every [outcome](errors/README.md) except `completed` and `cancelled` is a rejection or an error.",
    ),
    counter(
        "headgate_requests_admitted_total",
        "class",
        "Requests admitted to the queue.",
        "A request is counted when it is first sent to an engine or, if it is never sent, when it ends.",
    ),
    counter(
        "headgate_requests_degraded_total",
        "class",
        "Requests sent at a degradation level above 0 or to a model other than the one requested.",
        "See [degradation levels](policy.md#degradation-levels).",
    ),
    counter(
        "headgate_route_requests_total",
        "model route result",
        "Finished requests that were sent on a [route](configuration.md#modelsnameroutes) of their model.",
        "`result` is `completed`, `rejected`, `failed` or `cancelled`. A request that is retried counts once.",
    ),
    counter(
        "headgate_mirrored_requests_total",
        "model route result",
        "Requests selected for [copying to a mirror](../guides/mirroring.md).",
        "`completed`, `failed` and `stopped` count copies that were sent. All other values of `result` are reasons for "
        "which no copy was sent: `pressure`, `busy`, `no_endpoints`, `body_too_large` and `limit`.",
    ),
    counter(
        "headgate_tokens_total",
        "class direction",
        "Tokens used by all attempts.",
        "`direction` is `prompt` or `output`.",
    ),
    counter(
        "headgate_goodput_tokens_total",
        "class direction",
        "Tokens used by the attempts that completed a request.",
        "Failed attempts, losing hedges and truncated streams are counted only in `headgate_tokens_total`.",
    ),
    counter(
        "headgate_goodput_requests_total",
        "class",
        "Requests completed within all latency targets of their class.",
        "The targets are `ttft` and `tpot`, which apply only to streams, and `e2e`.",
    ),
    counter(
        "headgate_cost_usd_total",
        "class",
        "Cost of finished requests across all attempts, in US dollars.",
        "Includes costs not charged to any tenant. Attempts on pools without a [price](../concepts/cost.md) cost 0.",
    ),
    histogram("headgate_queue_wait_seconds", "class", "Time spent in the gateway's queue before the first attempt."),
    histogram(
        "headgate_time_to_first_token_seconds",
        "class prompt_size",
        "Time from arrival to the first token of a stream.",
        "`prompt_size` is the [prompt size](#prompt-sizes): `small`, `medium` or `large`.",
    ),
    histogram("headgate_inter_token_latency_seconds", "class", "Time between consecutive tokens of a stream."),
    histogram(
        "headgate_request_duration_seconds",
        "class prompt_size",
        "Time from arrival to completion, for completed requests.",
    ),
)

_TENANTS: Final = (
    counter(
        "headgate_tenant_requests_total",
        "tenant result",
        "Finished requests by tenant and result.",
        "`result` is `completed`, `rejected` (a 4xx status), `failed` (a 5xx status) or `cancelled`. The number of "
        "`tenant` values is [limited](#tenant-labels).",
    ),
    counter("headgate_tenant_tokens_total", "tenant direction", "Tokens used by each tenant, across all attempts."),
    counter(
        "headgate_tenant_cost_usd_total",
        "tenant",
        "Cost charged to each tenant, in US dollars.",
        "The cost of the gateway's own retries and hedges is included only in `headgate_cost_usd_total`.",
    ),
    gauge("headgate_tenant_queue_depth", "tenant", "Queued requests by tenant.", exposed_when=_SCHEDULER_ONLY),
)

_OBJECTIVES: Final = (
    counter(
        "headgate_objective_requests_total",
        "class objective",
        "Requests that count toward an objective of their class.",
        "`ttft` counts streams, including those that were rejected or failed before their first token. `duration` "
        "counts completed requests. `availability` counts all requests except those that ended because of a caller "
        "error, a cancellation or a limit.",
        exposed_when="the class has a `ttft`, an `e2e` or [objectives](configuration.md#classesnameobjectives)",
    ),
    counter(
        "headgate_objective_good_requests_total",
        "class objective",
        "Requests that met an objective of their class.",
        "Each request is compared with the exact target rather than with histogram buckets.",
        exposed_when="the class has a `ttft`, an `e2e` or objectives",
    ),
    gauge(
        "headgate_objective_target_ratio",
        "class objective",
        "Target share of requests that meet an objective, from 0 to 1.",
        exposed_when="the class has objectives",
    ),
    gauge(
        "headgate_cost_objective_usd_per_1k_tokens",
        "class",
        "Maximum cost per 1,000 prompt and output tokens, averaged over an hour, in US dollars.",
        exposed_when="the class has a cost objective",
    ),
)

_POOLS: Final = (
    counter(
        "headgate_attempts_total",
        "pool ending",
        "Finished attempts by how they ended.",
        "`timeout`: the attempt timed out. `rejected`: the engine rejected the attempt. `aborted`: the scheduler "
        "stopped the attempt.",
    ),
    counter(
        "headgate_attempt_faults_total",
        "pool fault",
        "Failed attempts by fault type.",
        "See [how failures are attributed](../guides/fleets.md#how-failures-are-attributed).",
    ),
    counter("headgate_retries_total", "pool", "Attempts sent after an earlier attempt of the same request had ended."),
    counter("headgate_hedges_total", "pool", "Attempts sent while another attempt of the same request was running."),
    counter("headgate_endpoint_ejections_total", "pool", "Endpoint ejections."),
    counter(
        "headgate_usage_implausible_total", "pool", "Attempts for which the engine reported implausible token usage."
    ),
    histogram("headgate_batch_size", "pool", "Inputs per engine call in pools with batching."),
    histogram("headgate_batch_wait_seconds", "pool", "Time each request spent waiting for its batch to fill."),
    gauge(
        "headgate_demand_endpoints",
        "pool",
        "Demand for engine time, in units of one endpoint's capacity.",
        exposed_when=_SCHEDULER_ONLY,
    ),
    gauge(
        "headgate_demand_to_capacity_ratio",
        "pool",
        "Demand for engine time divided by the capacity of the ready endpoints.",
        "The queue grows while the value is above 1. If no endpoint is ready, the demand is divided by the capacity "
        "of one endpoint.",
        exposed_when=_SCHEDULER_ONLY,
    ),
    gauge("headgate_endpoints_desired", "pool", "Number of endpoints desired by the autoscaler.", exposed_when=_SCALED),
    gauge(
        "headgate_endpoints",
        "pool state",
        "Number of endpoints by state.",
        "Every pool has a series for every state, even if no endpoint is in that state.",
        exposed_when=_SCHEDULER_ONLY,
    ),
    gauge(
        "headgate_endpoint_measured_to_configured_time_ratio",
        "pool endpoint part",
        "Measured decode and prefill time relative to the pool's `speed`.",
        "`part` is `decode` or `prefill`. Above 1, the endpoint is slower than configured. If the pool has no `speed`, "
        "the ratio refers to the gateway's default.",
        exposed_when=_SCHEDULER_ONLY,
    ),
    gauge(
        "headgate_scaling_correction_ratio",
        "pool",
        "Correction factor for predicted work, derived from measured latency attainment.",
        "A value far from 1 means that the configured `speed` is "
        "[wrong](../concepts/scaling.md#when-the-speed-is-wrong).",
        exposed_when=_SCALED,
    ),
    gauge(
        "headgate_endpoints_starting",
        "pool phase",
        "Number of starting endpoints by phase.",
        "`phase` is `not_scheduled`, `starting`, `loading` or `warming`. See [how cold starts are "
        "measured](../concepts/scaling.md#how-cold-starts-are-measured).",
        exposed_when=_SCHEDULER_ONLY,
    ),
    gauge(
        "headgate_endpoint_start_age_seconds",
        "pool",
        "Age of the oldest endpoint start in progress, or 0 if there is none.",
        "Starts older than one hour are considered stuck and are excluded.",
        exposed_when=_SCHEDULER_ONLY,
    ),
    gauge(
        "headgate_scaling_lead_time_seconds",
        "pool",
        "Forecast horizon of the autoscaler.",
        "The cold-start time plus the scaling period, or the age of the oldest start in progress if that is longer.",
        exposed_when=_SCALED,
    ),
    histogram(
        "headgate_cold_start_seconds", "pool", "Time from a scale-up until an endpoint is ready.", exposed_when=_SCALED
    ),
    histogram(
        "headgate_endpoint_warming_seconds",
        "pool",
        "Time an endpoint took to become ready.",
        "Measured from when the endpoint joined or stopped being ready, regardless of how it was started.",
    ),
    histogram(
        "headgate_endpoint_start_phase_seconds",
        "pool phase",
        "Duration of each phase of an endpoint start.",
        "`phase` is `pending`, `process`, `weights`, `warm_up` or `join`. See [how an endpoint "
        "starts](../guides/fleets.md#how-an-endpoint-starts).",
        exposed_when=_STARTS_ENDPOINTS,
    ),
    histogram(
        "headgate_endpoint_drain_seconds",
        "pool",
        "Time an endpoint took to finish its attempts after being removed by a scale-down.",
        exposed_when=_STARTS_ENDPOINTS,
    ),
)

_QUEUES: Final = (
    gauge("headgate_queue_depth", "class", "Queued requests, excluding held requests.", exposed_when=_SCHEDULER_ONLY),
    counter(
        "headgate_requests_held_total",
        "class pool",
        "Requests held while an empty pool started its first endpoint.",
        exposed_when=_TO_ZERO,
    ),
    gauge(
        "headgate_hold_depth",
        "class pool",
        "Requests currently held while an empty pool starts its first endpoint.",
        "`scaling.held_requests_max` limits the number per pool.",
        exposed_when=_TO_ZERO,
    ),
    gauge(
        "headgate_degradation_level",
        "pool",
        "Degradation level of a pool, from 0 (none) to 6.",
        "See [degradation levels](policy.md#degradation-levels).",
        exposed_when=_SCHEDULER_ONLY,
    ),
    gauge(
        "headgate_shed_ratio",
        "pool",
        "Share of arrivals rejected by load shedding, from 0 to 1.",
        exposed_when=_SCHEDULER_ONLY,
    ),
    gauge("headgate_attempts_in_flight", "pool endpoint", "Attempts in flight.", exposed_when=_SCHEDULER_ONLY),
    gauge(
        "headgate_adapter_attempts_in_flight",
        "pool adapter",
        "Attempts in flight by LoRA adapter. Adapters beyond the first 100 of a pool that have some count as `other`.",
        exposed_when=_SCHEDULER_ONLY,
    ),
    gauge(
        "headgate_prefix_index_entries",
        "pool",
        "Hashes in the prefix index, which tracks the prompt prefixes cached on each endpoint.",
        "A hash counts once per endpoint. See [prefix-aware routing](policy.md#prefix-aware-routing).",
        exposed_when=_SCHEDULER_ONLY,
    ),
    gauge(
        "headgate_prefix_index_bytes",
        "pool",
        "Estimated memory of the prefix index. The limit is 256 MiB per pool.",
        exposed_when=_SCHEDULER_ONLY,
    ),
    gauge(
        "headgate_sessions",
        "pool",
        "Sessions whose last endpoint is known. The limit is 16,384 per pool.",
        "See [session affinity](policy.md#session-affinity).",
        exposed_when=_SCHEDULER_ONLY,
    ),
    gauge(
        "headgate_quarantined_requests",
        "",
        "Quarantined requests.",
        "The limit is 1,024. See [quarantined](errors/quarantined.md).",
        exposed_when=_SCHEDULER_ONLY,
    ),
)

_ENGINE_REPORTS: Final = "the engine exports it"
_GPU_REPORTED: Final = "the engine or a DCGM exporter exports it"
_ENGINES: Final = (
    gauge(
        "headgate_engine_metric_missing",
        "endpoint metric",
        "1 if an expected engine metric is missing, otherwise 0.",
        "`metric` is the name of the engine metric. The set of expected metrics depends on the engine type.",
    ),
    gauge(
        "headgate_engine_metrics_age_seconds",
        "endpoint",
        "Time since the gateway last scraped the engine's load metrics.",
        "Absent until the first successful scrape.",
    ),
    gauge(
        "headgate_engine_requests_running",
        "pool endpoint",
        "Requests running in the engine, including those from other clients.",
        exposed_when=_ENGINE_REPORTS,
    ),
    gauge(
        "headgate_engine_requests_waiting",
        "pool endpoint",
        "Requests waiting in the engine's queue.",
        exposed_when=_ENGINE_REPORTS,
    ),
    gauge(
        "headgate_engine_kv_cache_usage_ratio",
        "pool endpoint",
        "Share of the engine's KV cache in use, from 0 to 1.",
        exposed_when=_ENGINE_REPORTS,
    ),
    counter(
        "headgate_engine_preemptions_total",
        "pool endpoint",
        "Requests preempted by the engine because its KV cache was full.",
        exposed_when=_ENGINE_REPORTS,
    ),
    counter(
        "headgate_engine_prefix_cache_queries_total",
        "pool endpoint",
        "Prompt tokens looked up in the engine's prefix cache.",
        exposed_when=_ENGINE_REPORTS,
    ),
    counter(
        "headgate_engine_prefix_cache_hits_total",
        "pool endpoint",
        "Prompt tokens found in the engine's prefix cache.",
        exposed_when=_ENGINE_REPORTS,
    ),
    gauge(
        "headgate_gpu_utilization_ratio",
        "pool endpoint",
        "Mean GPU utilization, from 0 to 1.",
        exposed_when=_GPU_REPORTED,
    ),
    gauge(
        "headgate_gpu_memory_used_bytes",
        "pool endpoint",
        "Memory in use on the endpoint's GPUs.",
        exposed_when=_GPU_REPORTED,
    ),
    gauge(
        "headgate_gpu_memory_total_bytes",
        "pool endpoint",
        "Total memory on the endpoint's GPUs.",
        exposed_when=_GPU_REPORTED,
    ),
)

_VERDICTS: Final = (
    gauge(
        "headgate_verdict",
        "pool cause",
        "1 for the cause in the pool's current verdict, 0 for all other causes.",
        "If a pool has no problem, its cause is `healthy`. The verdict on the gateway as a whole is reported under the "
        "pool `gateway`.",
        exposed_when=_SCHEDULER_ONLY,
    ),
    gauge(
        "headgate_incident",
        "pool incident",
        "1 for the incident recognized in the pool, 0 for all other incidents.",
        exposed_when=_SCHEDULER_ONLY,
    ),
)

_PROCESS: Final = (
    histogram(
        "headgate_event_loop_lag_seconds",
        "",
        "Delay before the event loop runs due callbacks, which holds up every stream.",
    ),
    gauge(
        "headgate_event_loop_iteration_max_seconds",
        "clock window",
        "Longest iteration of the event loop.",
        "`clock` is `cpu` (CPU time of the loop's thread) or `wall` (elapsed time). `window` is `lifetime` "
        "(of the process) or `recent` (the last one to two minutes). The value is sampled; the true maximum can "
        "be up to 10 ms higher.",
    ),
    counter("headgate_process_cpu_seconds_total", "", "CPU time used by this process."),
    gauge(
        "headgate_process_resident_memory_bytes",
        "",
        "Resident memory of this process.",
        exposed_when="the operating system provides `/proc/self/statm`",
    ),
    counter(
        "headgate_scheduler_busy_seconds_total",
        "",
        "Time spent in the scheduler.",
        "Extrapolated from one event in 17. In a cell, includes the time spent handling the cell's messages.",
    ),
    gauge(
        "headgate_tracked_objects", "kind", "Objects kept in memory, by kind.", "The counts rise and fall with traffic."
    ),
    gauge("headgate_config_info", "hash", "Constant 1, labeled with the hash of the active configuration."),
    gauge(
        "headgate_config_applied_timestamp_seconds",
        "",
        "Unix time at which the active configuration was applied.",
    ),
    gauge(
        "headgate_config_reload_successful",
        "",
        "1 if the configuration files were valid when they were last read, otherwise 0.",
        "At 0, the previous configuration stays active, and `headgate status` shows the problems.",
    ),
    gauge(
        "headgate_setting_trial_running",
        "",
        "1 while this process measures a [setting trial](../guides/tune-live.md), otherwise 0.",
    ),
    gauge(
        "headgate_setting_trial_new_value",
        "",
        "1 while the running setting trial has its new value in force, otherwise 0.",
    ),
    counter(
        "headgate_setting_trials_total",
        "result",
        "Setting trials that this process has ended.",
        "`improved` and `harmless` values were kept. All others were reverted: `worse`, `undecided`, `aborted`, "
        "`reloaded` and `interrupted`.",
    ),
    gauge(
        "headgate_config_restart_needed",
        "",
        "Number of changed settings that take effect only after a restart.",
        "`headgate status` lists them.",
    ),
    counter(
        "headgate_keys_verified_total",
        "secret",
        "Requests with a valid key, by the fingerprint of the key secret that verified it.",
        "A secret that no longer verifies any keys can be removed from `key_secret`.",
    ),
    gauge("headgate_build_info", "version", "Constant 1, labeled with the running version."),
)

SECTIONS: Final[Mapping[str, tuple[MetricDefinition, ...]]] = MappingProxyType(
    {
        "Requests": _TRAFFIC,
        "Tenants": _TENANTS,
        "Objectives": _OBJECTIVES,
        "Stages and records": STAGES,
        "Traces": TRACES,
        "Queues": _QUEUES,
        "Pools": _POOLS,
        "Engines": _ENGINES,
        "Verdicts": _VERDICTS,
        "Process": _PROCESS,
        "TLS": TLS,
        "Cell": CELL,
        "Keys and ledger": ACCOUNTS,
    }
)
"""Metrics by section of the reference page."""
METRICS: Final = tuple(each for part in SECTIONS.values() for each in part)
BY_NAME: Final[Mapping[str, MetricDefinition]] = MappingProxyType({each.name: each for each in METRICS})
assert len(BY_NAME) == len(METRICS), "the catalogue has two metrics with the same name"
