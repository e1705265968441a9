"""Catalogue of all metrics: name, kind, labels and help text.

This is the only list of metrics. `page.py` creates each family from its row here, `just docs` generates
docs/reference/metrics.md from it, and rules and dashboards are checked against it. A new metric is one more row.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headgate.telemetry.account_metrics import ACCOUNTS
from headgate.telemetry.described import Described, counter, gauge, histogram

_DECIDES: Final = "the process is a scheduler or an island"
_SCALED: Final = "the process is a scheduler or an island and the pool is [scaled](../concepts/scaling.md)"
_CELL: Final = "the process is in a [cell](../concepts/cell.md)"
_LEADS: Final = "the process is its cell's scheduler"
_STARTS: Final = "the gateway itself starts the pool's endpoints"
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
        "A request counts when it is first sent to an engine, or when it ends after waiting without being sent.",
    ),
    counter(
        "headgate_requests_degraded_total",
        "class",
        "Requests sent at a degradation level above 0 or to another model than requested.",
        "See [degradation levels](policy.md#degradation-levels).",
    ),
    counter(
        "headgate_tokens_total",
        "class direction",
        "Tokens used by all attempts.",
        "`direction` is `prompt` or `output`.",
    ),
    counter(
        "headgate_useful_tokens_total",
        "class direction",
        "Tokens used by the attempts that completed a request.",
        "Failed attempts, losing hedges and truncated streams count in `headgate_tokens_total` only.",
    ),
    counter(
        "headgate_goodput_requests_total",
        "class",
        "Requests completed within all latency targets of their class.",
        "The targets are `ttft` and `tpot`. They apply to streams only; every completed non-streaming request counts.",
    ),
    counter(
        "headgate_cost_usd_total",
        "class",
        "Cost of all attempts of finished requests, in US dollars.",
        "Includes cost that no tenant pays. Attempts on pools without a [price](../concepts/cost.md) cost 0.",
    ),
    histogram("headgate_queue_wait_seconds", "class", "Time in the gateway's queue before the first attempt."),
    histogram(
        "headgate_time_to_first_token_seconds",
        "class size",
        "Time from arrival to the first token of a stream.",
        "`size` is the [prompt size](#prompt-sizes): `small`, `medium` or `large`.",
    ),
    histogram("headgate_inter_token_latency_seconds", "class", "Time between consecutive tokens of a stream."),
    histogram("headgate_request_duration_seconds", "class size", "Time from arrival to the end of completed requests."),
)

_TENANTS: Final = (
    counter(
        "headgate_tenant_requests_total",
        "tenant outcome",
        "Finished requests of each tenant by result.",
        "`outcome` is `completed`, `refused` (a 4xx status), `failed` (a 5xx status) or `cancelled`. The number of "
        "`tenant` values is [limited](#tenant-labels).",
    ),
    counter("headgate_tenant_tokens_total", "tenant direction", "Tokens used by the attempts of each tenant."),
    counter(
        "headgate_tenant_cost_usd_total",
        "tenant",
        "Cost of the attempts that each tenant pays for, in US dollars.",
        "The cost of the gateway's own retries and hedges is in `headgate_cost_usd_total` only.",
    ),
    gauge("headgate_tenant_queue_depth", "tenant", "Queued requests of each tenant.", when=_DECIDES),
)

_OBJECTIVES: Final = (
    counter(
        "headgate_objective_requests_total",
        "class objective",
        "Requests measured against an objective of their class.",
        "`ttft` counts streams, including those rejected or failed before their first token. `duration` counts "
        "completed requests. `served` counts all requests except those that ended because of a caller error, a "
        "cancellation or a limit.",
        when="the class has a `ttft` or [objectives](configuration.md#classesnameobjectives)",
    ),
    counter(
        "headgate_objective_good_total",
        "class objective",
        "Requests that met an objective of their class.",
        "Each request is compared with the exact target, not with histogram buckets.",
        when="the class has a `ttft` or objectives",
    ),
    gauge(
        "headgate_objective_ratio",
        "class objective",
        "Share of requests that must meet an objective, from 0 to 1.",
        when="the class has objectives",
    ),
    gauge(
        "headgate_cost_objective_usd_per_1k_tokens",
        "class",
        "Maximum hourly average cost of 1,000 prompt and output tokens, in US dollars.",
        when="the class has a cost objective",
    ),
)

_POOLS: Final = (
    counter(
        "headgate_attempts_total",
        "pool ending",
        "Finished attempts by ending.",
        "`silent` attempts timed out. `refused` attempts were rejected by the engine. `aborted` attempts were stopped "
        "by the scheduler.",
    ),
    counter(
        "headgate_attempt_faults_total",
        "pool fault",
        "Failed attempts by kind of fault.",
        "See [how failures are attributed](../guides/fleets.md#how-failures-are-attributed).",
    ),
    counter("headgate_retries_total", "pool", "Attempts sent after an earlier attempt of the same request had ended."),
    counter("headgate_hedges_total", "pool", "Attempts sent while another attempt of the same request was running."),
    counter("headgate_endpoint_ejections_total", "pool", "Ejections of endpoints."),
    counter("headgate_usage_disbelieved_total", "pool", "Attempts whose engine reported implausible token usage."),
    histogram("headgate_batch_size", "pool", "Inputs per engine call in pools with batching."),
    histogram("headgate_batch_wait_seconds", "pool", "Time that each request waited for its batch to fill."),
    gauge(
        "headgate_demand_endpoints",
        "pool",
        "Demand for engine time, in units of one endpoint's capacity.",
        when=_DECIDES,
    ),
    gauge(
        "headgate_demand_over_capacity",
        "pool",
        "Demand for engine time divided by the capacity of the ready endpoints.",
        "The queue grows while the value is above 1. Without a ready endpoint, the divisor is the capacity of one "
        "endpoint.",
        when=_DECIDES,
    ),
    gauge("headgate_endpoints_wanted", "pool", "Number of endpoints desired by the autoscaler.", when=_SCALED),
    gauge(
        "headgate_endpoints",
        "pool state",
        "Number of endpoints by state.",
        "Every pool has a series for every state, including those with the value 0.",
        when=_DECIDES,
    ),
    gauge(
        "headgate_scaling_correction_ratio",
        "pool",
        "Factor by which measured latency attainment corrects the predicted work.",
        "Far from 1, the configured `speed` is [wrong](../concepts/scaling.md#when-the-speed-is-wrong).",
        when=_SCALED,
    ),
    gauge(
        "headgate_endpoints_starting",
        "pool phase",
        "Number of starting endpoints by phase.",
        "`phase` is `not_scheduled`, `starting`, `loading` or `warming`. See [how cold starts are "
        "measured](../concepts/scaling.md#how-cold-starts-are-measured).",
        when=_DECIDES,
    ),
    gauge(
        "headgate_endpoint_start_age_seconds",
        "pool",
        "Age of the oldest endpoint start in progress, or 0 if none is.",
        "Starts older than one hour are considered stuck and do not count.",
        when=_DECIDES,
    ),
    gauge(
        "headgate_scaling_lead_seconds",
        "pool",
        "Forecast horizon of the autoscaler.",
        "The horizon is the cold-start time plus the scaling period, or the age of an older start in progress.",
        when=_SCALED,
    ),
    histogram("headgate_cold_start_seconds", "pool", "Time from a scale-up until an endpoint is ready.", when=_SCALED),
    histogram(
        "headgate_endpoint_warming_seconds",
        "pool",
        "Time until a joined or unready endpoint became ready.",
        "Measured from the moment when the endpoint joined or stopped being ready, regardless of what started it.",
    ),
    histogram(
        "headgate_endpoint_start_seconds",
        "pool phase",
        "Duration of each phase of an endpoint start.",
        "`phase` is `pending`, `process`, `weights`, `warm_up` or `join`. See [how an endpoint "
        "starts](../guides/fleets.md#how-an-endpoint-starts).",
        when=_STARTS,
    ),
    histogram(
        "headgate_endpoint_drain_seconds",
        "pool",
        "Time that an endpoint removed by scale-down took to finish its attempts.",
        when=_STARTS,
    ),
)

_QUEUES: Final = (
    gauge("headgate_queue_depth", "class", "Queued requests, excluding held requests.", when=_DECIDES),
    counter(
        "headgate_requests_held_total",
        "class pool",
        "Requests held until an endpoint of an empty pool was ready.",
        when=_TO_ZERO,
    ),
    gauge(
        "headgate_hold_depth",
        "class pool",
        "Held requests waiting for the first endpoint of an empty pool.",
        "`scaling.hold_max` limits the number per pool.",
        when=_TO_ZERO,
    ),
    gauge(
        "headgate_ladder_level",
        "pool",
        "Degradation level of a pool, from 0 (none) to 6.",
        "See [degradation levels](policy.md#degradation-levels).",
        when=_DECIDES,
    ),
    gauge("headgate_shed_fraction", "pool", "Share of arrivals rejected by load shedding, from 0 to 1.", when=_DECIDES),
    gauge("headgate_in_flight", "pool endpoint", "Attempts in flight.", when=_DECIDES),
    gauge(
        "headgate_prefix_hashes",
        "pool",
        "Hashes in the index of prompt prefixes cached by endpoints.",
        "The limit is 262,144 hashes per pool. See [prefix-aware routing](policy.md#prefix-aware-routing).",
        when=_DECIDES,
    ),
    gauge(
        "headgate_quarantined_requests",
        "",
        "Requests in quarantine.",
        "The limit is 1,024. See [quarantined](errors/quarantined.md).",
        when=_DECIDES,
    ),
)

_ENGINE_TELLS: Final = "the engine exports it"
_GPU_TELLS: Final = "the engine or a DCGM exporter exports it"
_ENGINES: Final = (
    gauge(
        "headgate_endpoint_signal_missing",
        "endpoint signal",
        "1 if an expected engine metric is missing, otherwise 0.",
        "`signal` names the metric. Each kind of engine has its own set of expected metrics.",
    ),
    gauge(
        "headgate_endpoint_telemetry_age_seconds",
        "endpoint",
        "Time since the gateway last read the engine's load metrics.",
        "Absent until the first successful read.",
    ),
    gauge(
        "headgate_engine_running",
        "pool endpoint",
        "Requests running in the engine, including those from other clients.",
        when=_ENGINE_TELLS,
    ),
    gauge("headgate_engine_waiting", "pool endpoint", "Requests waiting in the engine's queue.", when=_ENGINE_TELLS),
    gauge(
        "headgate_engine_kv_used_ratio",
        "pool endpoint",
        "Share of the engine's KV cache in use, from 0 to 1.",
        when=_ENGINE_TELLS,
    ),
    counter(
        "headgate_engine_preemptions_total",
        "pool endpoint",
        "Requests preempted by the engine because its KV cache was full.",
        when=_ENGINE_TELLS,
    ),
    counter(
        "headgate_engine_prefix_queries_total",
        "pool endpoint",
        "Prompt tokens looked up in the engine's prefix cache.",
        when=_ENGINE_TELLS,
    ),
    counter(
        "headgate_engine_prefix_hits_total",
        "pool endpoint",
        "Prompt tokens found in the engine's prefix cache.",
        when=_ENGINE_TELLS,
    ),
    gauge("headgate_gpu_utilisation_ratio", "pool endpoint", "Mean GPU utilization, from 0 to 1.", when=_GPU_TELLS),
    gauge("headgate_gpu_memory_used_bytes", "pool endpoint", "Memory in use on the endpoint's GPUs.", when=_GPU_TELLS),
    gauge("headgate_gpu_memory_total_bytes", "pool endpoint", "Total memory of the endpoint's GPUs.", when=_GPU_TELLS),
)

_VERDICTS: Final = (
    gauge(
        "headgate_verdict",
        "pool cause",
        "1 for the current cause in the pool's verdict, 0 for all other causes.",
        "A pool without a problem has the cause `healthy`. The verdict of the gateway as a whole has the pool "
        "`gateway`.",
        when=_DECIDES,
    ),
    gauge(
        "headgate_incident",
        "pool incident",
        "1 for the recognized incident of the pool, 0 for all other incidents.",
        when=_DECIDES,
    ),
)

_CELLS: Final = (
    gauge(
        "headgate_cell_mode",
        "mode",
        "1 for the current mode of the process, 0 for the other modes.",
        "`following`: a scheduler decides. `island`: the process decides alone, within its share. `seeking`: the "
        "process looks for a scheduler.",
        when=_CELL,
    ),
    gauge("headgate_cell_leads", "", "1 if the process is its cell's scheduler, otherwise 0.", when=_CELL),
    gauge("headgate_cell_epoch", "", "Epoch of the current scheduler.", "Rises with every new scheduler.", when=_CELL),
    gauge(
        "headgate_cell_share_of",
        "",
        "Divisor N of an island's share, which is 1/N of all slots and limits.",
        when=_CELL,
    ),
    gauge("headgate_cell_members", "", "Members known to the scheduler.", when=_LEADS),
    gauge(
        "headgate_cell_members_absent",
        "",
        "Members that do not respond to the scheduler.",
        "The scheduler keeps their shares free.",
        when=_LEADS,
    ),
    gauge("headgate_cell_unacknowledged", "", "Messages that the scheduler has not acknowledged yet.", when=_CELL),
    gauge("headgate_cell_store_up", "", "1 if the cell's store responds, otherwise 0.", when=_CELL),
    gauge(
        "headgate_cell_store_round_trip_seconds",
        "",
        "Slowest round trip to the cell's store in the last two seconds.",
        when=_CELL,
    ),
    counter("headgate_cell_store_reconnects_total", "", "Reconnections to the cell's store.", when=_CELL),
    counter("headgate_cell_store_timeouts_total", "", "Timeouts of the cell's store.", when=_CELL),
    counter(
        "headgate_cell_entries_passed_over_total",
        "",
        "Entries skipped because this version cannot read them.",
        when=_CELL,
    ),
)

_PROCESS: Final = (
    histogram("headgate_loop_lag_seconds", "", "Delay of due callbacks in the event loop, which delays every stream."),
    gauge(
        "headgate_loop_turn_longest_seconds",
        "clock since",
        "Longest iteration of the event loop.",
        "`clock` is `cpu` (CPU time of the loop's thread) or `wall` (elapsed time). `since` is `start` (process "
        "lifetime) or `recent` (the last one to two minutes). The value is sampled; the true maximum can be 10 ms "
        "higher.",
    ),
    counter("headgate_process_cpu_seconds_total", "", "CPU time used by this process."),
    gauge(
        "headgate_process_resident_bytes",
        "",
        "Resident memory of this process.",
        when="the operating system provides `/proc/self/statm`",
    ),
    counter(
        "headgate_decide_seconds_total",
        "",
        "Time spent in the scheduler.",
        "Extrapolated from one event in 17. In a cell, the value includes handling the cell's messages.",
    ),
    gauge("headgate_held", "what", "Objects kept in memory, by kind.", "The counts fall when traffic does."),
    gauge("headgate_config_info", "hash", "Constant 1, labeled with the hash of the active configuration."),
    gauge("headgate_build_info", "version", "Constant 1, labeled with the running version."),
)

_RECORDS: Final = "the gateway keeps [request records](configuration.md#records)"
_STAGES: Final = (
    histogram(
        "headgate_stage_seconds",
        "class stage",
        "Time that requests spent in each stage, summed over their attempts.",
        "A request counts once for each [stage](../guides/explain.md#stages) that it passed through.",
    ),
    counter(
        "headgate_stage_over_budget_total",
        "class stage",
        "Requests that exceeded the time budget of a stage.",
        when="the class has [stage budgets](configuration.md#classesnamestage_budget)",
    ),
    gauge(
        "headgate_stage_budget_seconds",
        "class stage",
        "Time budget of each stage.",
        when="the class has stage budgets",
    ),
    counter(
        "headgate_late_requests_total",
        "class goal stage",
        "Requests that missed a latency target, by their longest stage.",
        "`goal` is `ttft` (streams) or `duration` (completed requests). Both are measured from the moment when the "
        "scheduler receives the request, like the objectives. A stream that ended without a response counts for "
        "`ttft`, under the stage in which it ended.",
        when="the class has a `ttft` or a `duration` objective",
    ),
    counter("headgate_records_written_total", "", "Request records written to disk.", when=_RECORDS),
    counter(
        "headgate_records_dropped_total",
        "",
        "Request records lost.",
        "Either the record queue was full or writing to disk failed.",
    ),
    gauge("headgate_records_waiting", "", "Request records waiting to be processed and written."),
    gauge(
        "headgate_records_bytes",
        "",
        "Disk space used by the request records of all processes that share the directory.",
        when=_RECORDS,
    ),
    gauge(
        "headgate_records_oldest_seconds",
        "",
        "Time since the last write to the oldest file of request records.",
        when=_RECORDS,
    ),
)

_TRACING: Final = "the gateway exports [traces](../guides/tracing.md)"
_TRACES: Final = (
    counter(
        "headgate_traces_kept_total",
        "why",
        "Traces selected for export, by reason.",
        "`refused` and `failed`: the request was rejected or failed. `slow`: the request was among the slowest of its "
        "class. `sampled`: the trace was selected at random or its caller's trace is sampled.",
        when=_TRACING,
    ),
    counter(
        "headgate_traces_dropped_total",
        "why",
        "Traces lost before export, by reason.",
        "`too_many`: more traces than `kept_per_second_max`. `behind`: the record queue was full. `collector`: the "
        "collector rejected them or was unreachable. `mistake`: internal error of the gateway.",
        when=_TRACING,
    ),
    counter("headgate_traces_sent_total", "", "Traces accepted by the collector.", when=_TRACING),
    counter("headgate_trace_posts_failed_total", "", "Export requests that failed.", when=_TRACING),
    gauge("headgate_traces_waiting", "", "Traces waiting for export.", when=_TRACING),
)

PARTS: Final[Mapping[str, tuple[Described, ...]]] = MappingProxyType(
    {
        "Requests": _TRAFFIC,
        "Tenants": _TENANTS,
        "Objectives": _OBJECTIVES,
        "Stages and records": _STAGES,
        "Traces": _TRACES,
        "Queues": _QUEUES,
        "Pools": _POOLS,
        "Engines": _ENGINES,
        "Verdicts": _VERDICTS,
        "Process": _PROCESS,
        "Cell": _CELLS,
        "Keys and ledger": ACCOUNTS,
    }
)
"""Metrics by section of the reference page."""
METRICS: Final = tuple(each for part in PARTS.values() for each in part)
BY_NAME: Final[Mapping[str, Described]] = MappingProxyType({each.name: each for each in METRICS})
assert len(BY_NAME) == len(METRICS), "the catalogue has two metrics with the same name"
