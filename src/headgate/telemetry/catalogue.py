"""Which metrics are there, and what does each mean?

This is the only list of metrics: `page.py` creates each family from its row here, `just docs` generates
docs/reference/metrics.md from it, and rules and dashboards are checked against it. A new metric is one more row.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headgate.telemetry.account_metrics import ACCOUNTS
from headgate.telemetry.described import Described, counter, gauge, histogram

_DECIDES: Final = "the process decides"
_CELL: Final = "it is in a [cell](../concepts/cell.md)"
_STARTS: Final = "the gateway starts its endpoints itself"

_TRAFFIC: Final = (
    counter(
        "headgate_requests_total",
        "class outcome",
        "Requests by how they ended.",
        "See [the outcomes](errors/README.md); all but `completed` and `cancelled` are refusals or errors.",
    ),
    counter(
        "headgate_requests_admitted_total",
        "class",
        "Requests that were let in.",
        "Counted when first sent, or when they end without having been sent.",
    ),
    counter(
        "headgate_requests_degraded_total",
        "class",
        "Requests first sent with less than they asked for.",
        "At a [level](policy.md#when-there-is-more-than-can-be-served) of the ladder, or to another model.",
    ),
    counter("headgate_tokens_total", "class direction", "Tokens that attempts used.", "`prompt` or `output`."),
    counter(
        "headgate_useful_tokens_total",
        "class direction",
        "Tokens of the attempts that answered requests which completed.",
        "Retries, hedges that were let go and broken streams are in `headgate_tokens_total` alone.",
    ),
    counter(
        "headgate_goodput_requests_total",
        "class",
        "Requests that completed within every target of their class.",
        "`ttft` and `tpot`, which count for streams; all that completed where the class has neither.",
    ),
    counter(
        "headgate_cost_usd_total",
        "class",
        "What the attempts of ended requests cost.",
        "Whoever pays; 0 where pools have no [price](../concepts/cost.md).",
    ),
    histogram("headgate_queue_wait_seconds", "class", "Time in our queue before the first attempt."),
    histogram(
        "headgate_time_to_first_token_seconds",
        "class size",
        "From arrival to a stream's first token.",
        "`size` is that of the prompt: `small`, `medium`, `large` ([below](#how-large-a-request-is)).",
    ),
    histogram("headgate_inter_token_latency_seconds", "class", "Between the tokens of a stream."),
    histogram("headgate_request_duration_seconds", "class size", "From arrival to the end of requests that completed."),
)

_TENANTS: Final = (
    counter(
        "headgate_tenant_requests_total",
        "tenant outcome",
        "Requests of each tenant by how they ended.",
        "`completed`, `refused`, `failed` or `cancelled`; "
        "the tenants told apart are [bounded](#which-tenants-are-told-apart).",
    ),
    counter("headgate_tenant_tokens_total", "tenant direction", "Tokens that the attempts of each tenant used."),
    counter(
        "headgate_tenant_cost_usd_total",
        "tenant",
        "What the attempts that a tenant pays for cost.",
        "What our own retries and hedges cost is in `headgate_cost_usd_total` alone.",
    ),
    gauge("headgate_tenant_queue_depth", "tenant", "Requests of each tenant that wait.", when=_DECIDES),
)

_OBJECTIVES: Final = (
    counter(
        "headgate_objective_requests_total",
        "class objective",
        "Requests that an objective of their class is about.",
        "`ttft`: streams, also those that were refused or failed before their first token; `duration`: requests that "
        "completed; `served`: all but what was the caller's own doing or beyond its limits.",
        when="classes have a `ttft` or [objectives](configuration.md#classesnameobjectives)",
    ),
    counter(
        "headgate_objective_good_total",
        "class objective",
        "Of these, those by which it was kept.",
        "Counted one by one against the target, not by buckets.",
        when="classes have a `ttft` or objectives",
    ),
    gauge(
        "headgate_objective_ratio",
        "class objective",
        "What part of them is promised.",
        when="classes have objectives",
    ),
    gauge(
        "headgate_cost_objective_usd_per_1k_tokens",
        "class",
        "What a thousand tokens may cost, in and out, on the average of an hour.",
        when="a class has one",
    ),
)

_POOLS: Final = (
    counter("headgate_attempts_total", "pool ending", "Attempts by how they ended.", "`silent` are timeouts."),
    counter(
        "headgate_attempt_faults_total",
        "pool fault",
        "Failed attempts by kind of failure.",
        "See [who is to blame](../guides/fleets.md#who-is-to-blame-for-a-failure).",
    ),
    counter("headgate_retries_total", "pool", "Attempts made after another one of the same request had ended."),
    counter("headgate_hedges_total", "pool", "Attempts made while another one of the same request was silent."),
    counter("headgate_endpoint_ejections_total", "pool", "How often endpoints were ejected."),
    counter("headgate_usage_disbelieved_total", "pool", "Attempts whose engine reported an impossible usage."),
    histogram(
        "headgate_batch_size",
        "pool",
        "Inputs in each call to an engine that asks for several requests.",
        "Where requests are [asked together](../guides/batching.md).",
    ),
    histogram("headgate_batch_wait_seconds", "pool", "How long each request waited for company before it was sent."),
    gauge(
        "headgate_demand_endpoints",
        "pool",
        "Engine time that is asked of a pool in each second, by what one endpoint can give.",
        when=_DECIDES,
    ),
    gauge(
        "headgate_demand_over_capacity",
        "pool",
        "Engine time asked for, by what the ready endpoints can give; where there are none, by one.",
        "Above 1 the queue grows.",
        when=_DECIDES,
    ),
    gauge(
        "headgate_endpoints_wanted",
        "pool",
        "Endpoints that there should be.",
        "By the rules of a pool that is [scaled](../concepts/scaling.md).",
        when=_DECIDES,
    ),
    gauge(
        "headgate_endpoints",
        "pool state",
        "Endpoints by state.",
        "Each pool is there in each state, also with none.",
        when=_DECIDES,
    ),
    gauge(
        "headgate_scaling_correction_ratio",
        "pool",
        "Factor by which measured attainment corrects predicted work.",
        "Far from 1, the declared `speed` is wrong ([scaling](../concepts/scaling.md#when-the-speed-is-wrong)).",
        when=_DECIDES,
    ),
    gauge(
        "headgate_endpoints_starting",
        "pool phase",
        "Starts under way.",
        "`not_scheduled`, `starting`, `loading`, `warming` ([scaling](../concepts/scaling.md#how-cold-starts-are-measured)).",
        when=_DECIDES,
    ),
    gauge(
        "headgate_endpoint_start_age_seconds",
        "pool",
        "Age of the oldest start under way; 0 if there is none.",
        "A start older than an hour is stuck and no longer counts.",
        when=_DECIDES,
    ),
    gauge(
        "headgate_scaling_lead_seconds",
        "pool",
        "How far ahead the autoscaler looks.",
        "Cold start and period, or the age of a start that takes longer.",
        when=_DECIDES,
    ),
    histogram(
        "headgate_cold_start_seconds",
        "pool",
        "From the raised want to the ready endpoint.",
        "For every kind of fleet ([scaling](../concepts/scaling.md#how-cold-starts-are-measured)).",
        when=_DECIDES,
    ),
    histogram(
        "headgate_endpoint_warming_seconds",
        "pool",
        "From joining to the engine's word that it serves.",
        "Whoever started it; after it has ceased to serve, from then on.",
    ),
    histogram(
        "headgate_endpoint_start_seconds",
        "pool phase",
        "What the start of an endpoint was made of.",
        "`pending`, `process`, `weights`, `warm_up`, `join` ([fleets](../guides/fleets.md#how-an-endpoint-starts)).",
        when=_STARTS,
    ),
    histogram(
        "headgate_endpoint_drain_seconds",
        "pool",
        "How long an endpoint that was given up still had attempts.",
        when=_STARTS,
    ),
)

_QUEUES: Final = (
    gauge("headgate_queue_depth", "class", "Requests that wait, less those that were held.", when=_DECIDES),
    counter(
        "headgate_requests_held_total",
        "class pool",
        "Requests held until an endpoint had started.",
        when="a pool may have [none at all](../concepts/scaling.md#none-at-all)",
    ),
    gauge(
        "headgate_hold_depth",
        "class pool",
        "Requests that came while the pool had no endpoint and still wait.",
        "`scaling.hold_max` bounds them for each pool.",
        when="a pool may have none at all",
    ),
    gauge(
        "headgate_ladder_level",
        "pool",
        "How much is given up under overload.",
        "From 0 to 6 ([policy](policy.md#when-there-is-more-than-can-be-served)).",
        when=_DECIDES,
    ),
    gauge("headgate_shed_fraction", "pool", "Of what arrives, what is refused by rank.", when=_DECIDES),
    gauge("headgate_in_flight", "pool endpoint", "Attempts in flight.", when=_DECIDES),
    gauge(
        "headgate_prefix_hashes",
        "pool",
        "Hashes by which endpoints are known to hold the beginnings of prompts.",
        "At most 262,144 ([policy](policy.md#beginnings-that-an-engine-has-computed-before)).",
        when=_DECIDES,
    ),
    gauge(
        "headgate_quarantined_requests",
        "",
        "Requests that are [quarantined](errors/quarantined.md), at most 1,024.",
        when=_DECIDES,
    ),
)

_ENGINE_TELLS: Final = "the engine tells it"
_GPU_TELLS: Final = "the engine or a DCGM exporter tells it"
_ENGINES: Final = (
    gauge(
        "headgate_endpoint_signal_missing",
        "endpoint signal",
        "1 while an endpoint's engine does not tell what its kind tells, else 0.",
    ),
    gauge(
        "headgate_endpoint_telemetry_age_seconds",
        "endpoint",
        "Since the endpoint last told its load.",
        "Absent until it has.",
    ),
    gauge(
        "headgate_engine_running",
        "pool endpoint",
        "Sequences that the engine computes at the moment, whoever sent them.",
        when=_ENGINE_TELLS,
    ),
    gauge("headgate_engine_waiting", "pool endpoint", "Requests pending inside the engine.", when=_ENGINE_TELLS),
    gauge("headgate_engine_kv_used_ratio", "pool endpoint", "Of its KV cache, what is in use.", when=_ENGINE_TELLS),
    counter(
        "headgate_engine_preemptions_total",
        "pool endpoint",
        "Sequences that the engine took back for want of KV cache.",
        when=_ENGINE_TELLS,
    ),
    counter(
        "headgate_engine_prefix_queries_total",
        "pool endpoint",
        "Prompt tokens that the engine looked for in its prefix cache.",
        when=_ENGINE_TELLS,
    ),
    counter(
        "headgate_engine_prefix_hits_total",
        "pool endpoint",
        "Of these, those that it found.",
        when=_ENGINE_TELLS,
    ),
    gauge(
        "headgate_gpu_utilisation_ratio",
        "pool endpoint",
        "What part of the time the endpoint's GPUs were busy, on the mean.",
        "See [below](#gpus).",
        when=_GPU_TELLS,
    ),
    gauge(
        "headgate_gpu_memory_used_bytes",
        "pool endpoint",
        "Memory of its GPUs that is in use.",
        when=_GPU_TELLS,
    ),
    gauge("headgate_gpu_memory_total_bytes", "pool endpoint", "All memory of its GPUs.", when=_GPU_TELLS),
)

_VERDICTS: Final = (
    gauge(
        "headgate_verdict",
        "pool cause",
        "1 for what is the matter with a pool, 0 for all else.",
        "`pool` is `gateway` where it is about all of them; `healthy` is a cause too.",
        when=_DECIDES,
    ),
    gauge(
        "headgate_incident",
        "pool incident",
        "1 for the pattern that was recognised, 0 for all else.",
        when=_DECIDES,
    ),
)

_CELLS: Final = (
    gauge(
        "headgate_cell_mode",
        "mode",
        "1 for whom the process goes by, else 0.",
        "`following` the scheduler, `island` by itself with its share, or `seeking`.",
        when=_CELL,
    ),
    gauge("headgate_cell_leads", "", "1 where the process is the scheduler of its cell.", when=_CELL),
    gauge(
        "headgate_cell_epoch",
        "",
        "The number of the epoch that it follows.",
        "It rises with every new scheduler.",
        when=_CELL,
    ),
    gauge(
        "headgate_cell_share_of",
        "",
        "Of so many parts of all places and limits one is its own while it is an island.",
        when=_CELL,
    ),
    gauge(
        "headgate_cell_members",
        "",
        "Gateways that the scheduler reckons with.",
        when="it is the scheduler of its cell",
    ),
    gauge(
        "headgate_cell_members_absent",
        "",
        "Of these, those that do not answer.",
        "Their shares are kept free.",
        when="it is the scheduler of its cell",
    ),
    gauge("headgate_cell_unacknowledged", "", "Messages that the scheduler has yet to acknowledge.", when=_CELL),
    gauge("headgate_cell_store_up", "", "1 while the store of the cell answers.", when=_CELL),
    gauge(
        "headgate_cell_store_round_trip_seconds",
        "",
        "Slowest round trip to the store in the last two seconds.",
        when=_CELL,
    ),
    counter("headgate_cell_store_reconnects_total", "", "Connections to the store made anew.", when=_CELL),
    counter("headgate_cell_store_timeouts_total", "", "Answers of the store that did not come in time.", when=_CELL),
    counter("headgate_cell_entries_passed_over_total", "", "Entries that this version cannot read.", when=_CELL),
)

_PROCESS: Final = (
    histogram(
        "headgate_loop_lag_seconds",
        "",
        "How late the event loop runs what is due.",
        "Every stream is late by as much.",
    ),
    gauge(
        "headgate_loop_turn_longest_seconds",
        "clock since",
        "Longest turn of the event loop.",
        "`cpu` is processor time of the loop's thread, `wall` elapsed time; since the `start` of the process, or "
        "`recent`: within the last one to two minutes. Sampled, so a turn may be 10 ms longer.",
    ),
    counter("headgate_process_cpu_seconds_total", "", "Processor time that this process has used."),
    gauge("headgate_process_resident_bytes", "", "Memory of this process.", when="the system tells"),
    counter(
        "headgate_decide_seconds_total",
        "",
        "Time that the scheduler itself took to decide.",
        "Measured of one event in seventeen; in a cell with what it takes to talk with the others.",
    ),
    gauge("headgate_held", "what", "How much there is of all that could pile up.", "It falls when traffic does."),
    gauge("headgate_config_info", "hash", "1; the configuration in force, by its hash."),
    gauge("headgate_build_info", "version", "1; the version that runs."),
)

_RECORDS: Final = "it keeps [records](configuration.md#records)"
_STAGES: Final = (
    histogram(
        "headgate_stage_seconds",
        "class stage",
        "How long requests were in each of their stages.",
        "Each request once for each [stage](../guides/explain.md#stages) that it went through, over all its attempts.",
    ),
    counter(
        "headgate_stage_over_budget_total",
        "class stage",
        "Requests whose stage took longer than its budget.",
        when="classes have [stage budgets](configuration.md#classesnamestage_budget)",
    ),
    gauge(
        "headgate_stage_budget_seconds",
        "class stage",
        "How long each stage may take.",
        when="classes have stage budgets",
    ),
    counter(
        "headgate_late_requests_total",
        "class goal stage",
        "Requests that came too late, by the stage that took the most of that time.",
        "`goal` is `ttft`, of streams, or `duration`, which is that of the class's objectives; both are measured from "
        "when the scheduler is told of a request, as the objectives are. A stream that was not served counts for "
        "`ttft` by the stage in which it ended.",
        when="classes have such a goal",
    ),
    counter("headgate_records_written_total", "", "Records of requests written to files.", when=_RECORDS),
    counter(
        "headgate_records_dropped_total",
        "",
        "Records that could not be kept.",
        "More came than could be looked at or written, the disk took none, or one could not be written.",
    ),
    gauge("headgate_records_waiting", "", "Records that wait to be looked at and written."),
    gauge("headgate_records_bytes", "", "What the records of all who share the folder take.", when=_RECORDS),
    gauge("headgate_records_oldest_seconds", "", "Since the oldest file of them was last added to.", when=_RECORDS),
)

_TRACING: Final = "it sends [traces](../guides/tracing.md)"
_TRACES: Final = (
    counter(
        "headgate_traces_kept_total",
        "why",
        "Traces that were kept.",
        "`refused` or `failed`, among the `slow` ones of their class, or `sampled`: by rate, or "
        "because the trace of its caller is.",
        when=_TRACING,
    ),
    counter(
        "headgate_traces_dropped_total",
        "why",
        "Traces that were lost.",
        "`too_many` in one second, `behind` because requests ended faster than they could be looked at, `collector` "
        "because it would not take them or was away, `mistake` because we could not make them.",
        when=_TRACING,
    ),
    counter("headgate_traces_sent_total", "", "Traces that the collector has taken.", when=_TRACING),
    counter("headgate_trace_posts_failed_total", "", "Posts that the collector did not take.", when=_TRACING),
    gauge("headgate_traces_waiting", "", "Traces that are kept and have yet to be sent.", when=_TRACING),
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
        "The process": _PROCESS,
        "The cell": _CELLS,
        "Keys and the ledger": ACCOUNTS,
    }
)
"""By the headings of the reference."""
METRICS: Final = tuple(each for part in PARTS.values() for each in part)
BY_NAME: Final[Mapping[str, Described]] = MappingProxyType({each.name: each for each in METRICS})
assert len(BY_NAME) == len(METRICS), "a metric is described twice"
