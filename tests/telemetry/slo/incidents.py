"""Metric series from a healthy gateway, and how they change in each incident.

Each incident specifies the alert that it must raise. Series that it does not mention keep their healthy values.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from headgate.slo.durations import DAY, HOUR, MINUTE
from headgate.slo.objectives import ClassObjectives

PROMISES = (
    ClassObjectives(
        "chat",
        "latency",
        ttft_s=1.0,
        ttft_ppm=990_000,
        duration_s=30.0,
        duration_ppm=950_000,
        availability_ppm=999_000,
        cost_usd_per_1k_tokens=0.002,
    ),
    ClassObjectives("batch", "cost"),
)

HEALTHY = {
    'headgate_build_info{instance="a",version="1"}': "1",
    'headgate_config_info{instance="a",hash="x"}': "1",
    'headgate_config_info{instance="b",hash="x"}': "1",
    'headgate_requests_total{class="chat",outcome="completed"}': "+600",
    'headgate_requests_total{class="chat",outcome="engine_error"}': "0",
    'headgate_requests_total{class="chat",outcome="retry_budget_exhausted"}': "0",
    'headgate_requests_total{class="chat",outcome="budget_exceeded"}': "0",
    'headgate_objective_requests_total{class="chat",objective="ttft"}': "+600",
    'headgate_objective_good_requests_total{class="chat",objective="ttft"}': "+598",
    'headgate_objective_requests_total{class="chat",objective="availability"}': "+600",
    'headgate_objective_good_requests_total{class="chat",objective="availability"}': "+600",
    'headgate_cost_usd_total{class="chat"}': "+0.6",
    'headgate_tokens_total{class="chat",direction="prompt"}': "+400000",
    'headgate_tokens_total{class="chat",direction="output"}': "+200000",
    'headgate_goodput_tokens_total{class="chat",direction="output"}': "+200000",
    'headgate_queue_wait_seconds_bucket{class="chat",le="0.1"}': "+600",
    'headgate_queue_wait_seconds_bucket{class="chat",le="5"}': "+600",
    'headgate_queue_wait_seconds_bucket{class="chat",le="+Inf"}': "+600",
    'headgate_stage_duration_seconds_count{class="chat",stage="prefill"}': "+600",
    'headgate_stage_over_budget_total{class="chat",stage="prefill"}': "+1",
    'headgate_incident{pool="small",incident="healthy"}': "1",
    'headgate_incident{pool="small",incident="engine_hang"}': "0",
    'headgate_demand_to_capacity_ratio{pool="small"}': "0.5",
    'headgate_engine_kv_cache_usage_ratio{pool="small",endpoint="small/a"}': "0.6",
    'headgate_engine_kv_cache_usage_ratio{pool="small",endpoint="small/b"}': "0.99",
    'headgate_degradation_level{pool="small"}': "0",
    'headgate_shed_ratio{pool="small"}': "0",
    'headgate_attempts_total{pool="small",ending="completed"}': "+600",
    'headgate_retries_total{pool="small"}': "+6",
    'headgate_endpoints{pool="small",state="ready"}': "2",
    'headgate_endpoints{pool="asleep",state="ready"}': "0",
    'headgate_endpoints_desired{pool="asleep"}': "0",
    'headgate_endpoint_ejections_total{pool="small"}': "0",
    'headgate_engine_metric_missing{endpoint="small/a",metric="running"}': "0",
    'headgate_engine_metrics_age_seconds{endpoint="small/a"}': "1",
    'headgate_event_loop_lag_seconds_bucket{instance="a",le="0.01"}': "+600",
    'headgate_event_loop_lag_seconds_bucket{instance="a",le="0.5"}': "+600",
    'headgate_event_loop_lag_seconds_bucket{instance="a",le="+Inf"}': "+600",
    'headgate_traces_dropped_total{reason="export_failed"}': "0",
    'headgate_traces_dropped_total{reason="rate_limited"}': "+1",
    "headgate_records_dropped_total": "0",
    'headgate_tls_certificate_expires_in_seconds{instance="a",listener="listen"}': "5000000",
    'headgate_tls_certificate_reload_failed{instance="a",listener="listen"}': "0",
    'headgate_cell_mode{instance="a",mode="island"}': "0",
    'headgate_cell_mode{instance="a",mode="following"}': "1",
    'headgate_cell_store_up{instance="a"}': "1",
    "headgate_cell_members_absent": "0",
    'headgate_cell_share_leases_lost{instance="a"}': "0",
    'headgate_ledger_rows_lost_total{reason="spool"}': "0",
    'headgate_ledger_oldest_row_age_seconds{instance="a"}': "0.5",
    'headgate_ledger_database_up{instance="a"}': "1",
    'headgate_directory_fresh{instance="a"}': "1",
}
"""Value of a gauge or, with `+`, the increase of a counter per step."""


@dataclass(frozen=True, slots=True)
class Trouble:
    alert: str
    changed: dict[str, str]
    after_s: int = 20 * MINUTE
    """Time of the evaluation, in seconds after the start."""
    step_s: int = MINUTE
    changed_at_step: int = 0
    """Step at which the series change. The gateway is healthy before it."""
    without: tuple[str, ...] = field(default=())


_CHAT_BAD = 'headgate_objective_good_requests_total{class="chat",objective="ttft"}'
_COST = 'headgate_cost_usd_total{class="chat"}'

TROUBLES = (
    Trouble("HeadgateErrorBudgetBurnFast", {_CHAT_BAD: "+500"}, HOUR),
    Trouble("HeadgateErrorBudgetBurn", {_CHAT_BAD: "+560"}, 6 * HOUR, step_s=5 * MINUTE),
    Trouble("HeadgateErrorBudgetBurnSlow", {_CHAT_BAD: "+590"}, 3 * DAY, step_s=HOUR),
    Trouble("HeadgateCostObjectiveMissed", {_COST: "+1.5"}, 2 * HOUR),
    Trouble("HeadgateTokenCostDrift", {_COST: "+1.1"}, 8 * DAY, step_s=30 * MINUTE, changed_at_step=380),
    Trouble(
        "HeadgateRequestCostDrift",
        {
            _COST: "+1.1",
            'headgate_tokens_total{class="chat",direction="output"}': "+700000",
        },
        8 * DAY,
        step_s=30 * MINUTE,
        changed_at_step=380,
    ),
    Trouble(
        "HeadgateIncident",
        {
            'headgate_incident{pool="small",incident="healthy"}': "0",
            'headgate_incident{pool="small",incident="engine_hang"}': "1",
        },
    ),
    Trouble("HeadgateDemandExceedsCapacity", {'headgate_demand_to_capacity_ratio{pool="small"}': "1.4"}),
    Trouble("HeadgateKvCacheFull", {'headgate_engine_kv_cache_usage_ratio{pool="small",endpoint="small/a"}': "0.97"}),
    Trouble("HeadgateDegraded", {'headgate_degradation_level{pool="small"}': "2"}),
    Trouble("HeadgateLoadShedding", {'headgate_shed_ratio{pool="small"}': "0.2"}),
    Trouble("HeadgateRetryStorm", {'headgate_retries_total{pool="small"}': "+300"}),
    Trouble(
        "HeadgateClientRetriesHigh", {'headgate_requests_total{class="chat",outcome="retry_budget_exhausted"}': "+200"}
    ),
    Trouble("HeadgateBudgetExceeded", {'headgate_requests_total{class="chat",outcome="budget_exceeded"}': "+100"}),
    Trouble("HeadgateStageOverBudget", {'headgate_stage_over_budget_total{class="chat",stage="prefill"}': "+100"}),
    Trouble("HeadgateQueueWaitHigh", {'headgate_queue_wait_seconds_bucket{class="chat",le="0.1"}': "+100"}),
    Trouble("HeadgateNoReadyEndpoint", {'headgate_endpoints{pool="small",state="ready"}': "0"}),
    Trouble("HeadgateErrorRateHigh", {'headgate_requests_total{class="chat",outcome="engine_error"}': "+100"}),
    Trouble("HeadgateEndpointsEjected", {'headgate_endpoint_ejections_total{pool="small"}': "+1"}),
    Trouble(
        "HeadgateEngineMetricMissing", {'headgate_engine_metric_missing{endpoint="small/a",metric="running"}': "1"}
    ),
    Trouble("HeadgateEngineMetricsStale", {'headgate_engine_metrics_age_seconds{endpoint="small/a"}': "90"}),
    Trouble("HeadgateDown", {}, without=('headgate_build_info{instance="a",version="1"}',)),
    Trouble("HeadgateEventLoopLag", {'headgate_event_loop_lag_seconds_bucket{instance="a",le="0.01"}': "+500"}),
    Trouble("HeadgateConfigMismatch", {'headgate_config_info{instance="c",hash="y"}': "1"}),
    Trouble("HeadgateTracesDropped", {'headgate_traces_dropped_total{reason="export_failed"}': "+1"}),
    Trouble("HeadgateRecordsDropped", {"headgate_records_dropped_total": "+1"}),
    Trouble(
        "HeadgateCertificateExpires",
        {'headgate_tls_certificate_expires_in_seconds{instance="a",listener="listen"}': "1000000"},
    ),
    Trouble(
        "HeadgateCertificateExpiresToday",
        {'headgate_tls_certificate_expires_in_seconds{instance="a",listener="listen"}': "80000"},
    ),
    Trouble(
        "HeadgateCertificateReloadFailed",
        {'headgate_tls_certificate_reload_failed{instance="a",listener="listen"}': "1"},
    ),
    Trouble("HeadgateCellIsland", {'headgate_cell_mode{instance="a",mode="island"}': "1"}),
    Trouble("HeadgateCellStoreDown", {'headgate_cell_store_up{instance="a"}': "0"}),
    Trouble("HeadgateCellMembersAbsent", {"headgate_cell_members_absent": "1"}),
    Trouble("HeadgateCellShareLeasesLost", {'headgate_cell_share_leases_lost{instance="a"}': "1"}),
    Trouble("HeadgateLedgerRowsLost", {'headgate_ledger_rows_lost_total{reason="spool"}': "+1"}),
    Trouble("HeadgateLedgerBehind", {'headgate_ledger_oldest_row_age_seconds{instance="a"}': "900"}),
    Trouble("HeadgateLedgerDatabaseDown", {'headgate_ledger_database_up{instance="a"}': "0"}),
    Trouble("HeadgateDirectoryStale", {'headgate_directory_fresh{instance="a"}': "0"}),
)

YOUNG = tuple(
    Trouble(alert, {_COST: "+1.2"}, 22 * HOUR, step_s=5 * MINUTE, changed_at_step=20 * 12)
    for alert in ("HeadgateTokenCostDrift", "HeadgateRequestCostDrift")
)
"""A gateway that has been running for 22 hours and has been more expensive for the last two."""


DAY_STEP_S = 30 * MINUTE


def day_and_night(days: int, cost_of_one: Callable[[int], float]) -> dict[str, str]:
    """Traffic with ten times as many requests by day as by night.

    `cost_of_one` is the cost of a request as a function of the hours since the start.
    """
    requests, cost = [0], [0.0]
    for step in range(days * DAY // DAY_STEP_S):
        hour = step * DAY_STEP_S // HOUR
        asked = 3_000 if 8 <= hour % 24 < 20 else 300
        requests.append(requests[-1] + asked)
        cost.append(cost[-1] + asked * cost_of_one(hour))
    return {
        'headgate_requests_total{class="chat",outcome="completed"}': " ".join(f"{each}x0" for each in requests),
        'headgate_tokens_total{class="chat",direction="output"}': " ".join(f"{each * 900}x0" for each in requests),
        _COST: " ".join(f"{each:.6f}x0" for each in cost),
    }


FEW_REQUESTS = {
    'headgate_objective_requests_total{class="chat",objective="ttft"}': "0x10 3x300",
    _CHAT_BAD: "0x310",
    'headgate_requests_total{class="chat",outcome="completed"}': "0x310",
    'headgate_requests_total{class="chat",outcome="engine_error"}': "0x10 3x300",
}
"""Only three requests, all of which fail."""
