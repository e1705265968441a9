"""Metric catalogue rows for stages, request records and traces."""

from typing import Final

from headgate.telemetry.metric_definition import counter, gauge, histogram

_KEEPS_RECORDS: Final = "the gateway keeps [request records](configuration.md#records)"
STAGES: Final = (
    histogram(
        "headgate_stage_duration_seconds",
        "class stage",
        "Time requests spent in each stage, summed across attempts.",
        "A request is counted once for each [stage](../guides/explain.md#stages) that it passed through.",
    ),
    counter(
        "headgate_stage_over_budget_total",
        "class stage",
        "Requests that exceeded a stage's time budget.",
        exposed_when="the class has [stage budgets](configuration.md#classesnamestage_budget)",
    ),
    gauge(
        "headgate_stage_budget_seconds",
        "class stage",
        "Time budget of each stage.",
        exposed_when="the class has stage budgets",
    ),
    counter(
        "headgate_requests_late_total",
        "class target stage",
        "Requests that missed a latency target, by their longest stage.",
        "`target` is `ttft` (streams) or `duration` (completed requests). As with the objectives, both are measured "
        "from when the scheduler receives the request. A stream that ended without a response is counted under "
        "`ttft` and the stage in which it ended.",
        exposed_when="the class has a `ttft` or a `duration` objective",
    ),
    counter("headgate_records_written_total", "", "Request records written to disk.", exposed_when=_KEEPS_RECORDS),
    counter(
        "headgate_records_dropped_total",
        "",
        "Request records lost.",
        "This happens when the record queue is full or a write to disk fails.",
    ),
    gauge("headgate_records_waiting", "", "Request records waiting to be processed and written."),
    gauge(
        "headgate_records_bytes",
        "",
        "Disk space used by request records, across all processes that share the directory.",
        exposed_when=_KEEPS_RECORDS,
    ),
    gauge(
        "headgate_records_oldest_age_seconds",
        "",
        "Time since the oldest request record file was last written.",
        exposed_when=_KEEPS_RECORDS,
    ),
)

_SENDS_TRACES: Final = "the gateway exports [traces](../guides/tracing.md)"
TRACES: Final = (
    counter(
        "headgate_traces_kept_total",
        "reason",
        "Traces selected for export, by reason.",
        "`rejected` and `failed`: the request was rejected or failed. `slow`: the request was among the slowest in its "
        "class. `sampled`: the trace was selected at random, or the caller had already sampled it.",
        exposed_when=_SENDS_TRACES,
    ),
    counter(
        "headgate_traces_dropped_total",
        "reason",
        "Traces lost before export, by reason.",
        "`rate_limited`: the rate exceeded `traces_per_second_max`. `queue_full`: the record queue was full. "
        "`export_failed`: the collector was unreachable or rejected the trace. `internal_error`: a bug in the gateway.",
        exposed_when=_SENDS_TRACES,
    ),
    counter("headgate_traces_exported_total", "", "Traces accepted by the collector.", exposed_when=_SENDS_TRACES),
    counter("headgate_trace_exports_failed_total", "", "Failed trace export requests.", exposed_when=_SENDS_TRACES),
    gauge("headgate_traces_waiting", "", "Traces waiting for export.", exposed_when=_SENDS_TRACES),
)
