"""Which series does a healthy gateway tell, and which of them does each incident change?

Each incident names the alert that it must raise. What it does not mention stays as in health.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from headgate.slo.lengths import DAY, HOUR, MINUTE
from headgate.slo.promises import ClassPromises

PROMISES = (
    ClassPromises(
        "chat",
        "latency",
        ttft_s=1.0,
        ttft_ppm=990_000,
        duration_s=30.0,
        duration_ppm=950_000,
        served_ppm=999_000,
        cost_usd_per_1k_tokens=0.002,
    ),
    ClassPromises("batch", "cost"),
)

HEALTHY = {
    'headgate_build_info{instance="a",version="1"}': "1",
    'headgate_config_info{instance="a",hash="x"}': "1",
    'headgate_config_info{instance="b",hash="x"}': "1",
    'headgate_requests_total{class="chat",outcome="completed"}': "+600",
    'headgate_requests_total{class="chat",outcome="engine_failed"}': "0",
    'headgate_requests_total{class="chat",outcome="retry_refused"}': "0",
    'headgate_requests_total{class="chat",outcome="over_budget"}': "0",
    'headgate_objective_requests_total{class="chat",objective="ttft"}': "+600",
    'headgate_objective_good_total{class="chat",objective="ttft"}': "+598",
    'headgate_objective_requests_total{class="chat",objective="served"}': "+600",
    'headgate_objective_good_total{class="chat",objective="served"}': "+600",
    'headgate_cost_usd_total{class="chat"}': "+0.6",
    'headgate_tokens_total{class="chat",direction="prompt"}': "+400000",
    'headgate_tokens_total{class="chat",direction="output"}': "+200000",
    'headgate_useful_tokens_total{class="chat",direction="output"}': "+200000",
    'headgate_queue_wait_seconds_bucket{class="chat",le="0.1"}': "+600",
    'headgate_queue_wait_seconds_bucket{class="chat",le="5"}': "+600",
    'headgate_queue_wait_seconds_bucket{class="chat",le="+Inf"}': "+600",
    'headgate_stage_seconds_count{class="chat",stage="prefill"}': "+600",
    'headgate_stage_over_budget_total{class="chat",stage="prefill"}': "+1",
    'headgate_incident{pool="small",incident="healthy"}': "1",
    'headgate_incident{pool="small",incident="engine_hang"}': "0",
    'headgate_demand_over_capacity{pool="small"}': "0.5",
    'headgate_engine_kv_used_ratio{pool="small",endpoint="small/a"}': "0.6",
    'headgate_engine_kv_used_ratio{pool="small",endpoint="small/b"}': "0.99",
    'headgate_ladder_level{pool="small"}': "0",
    'headgate_shed_fraction{pool="small"}': "0",
    'headgate_attempts_total{pool="small",ending="completed"}': "+600",
    'headgate_retries_total{pool="small"}': "+6",
    'headgate_endpoints{pool="small",state="ready"}': "2",
    'headgate_endpoints{pool="asleep",state="ready"}': "0",
    'headgate_endpoints_wanted{pool="asleep"}': "0",
    'headgate_endpoint_ejections_total{pool="small"}': "0",
    'headgate_endpoint_signal_missing{endpoint="small/a",signal="running"}': "0",
    'headgate_endpoint_telemetry_age_seconds{endpoint="small/a"}': "1",
    'headgate_loop_lag_seconds_bucket{instance="a",le="0.01"}': "+600",
    'headgate_loop_lag_seconds_bucket{instance="a",le="0.5"}': "+600",
    'headgate_loop_lag_seconds_bucket{instance="a",le="+Inf"}': "+600",
    'headgate_traces_dropped_total{why="collector"}': "0",
    'headgate_traces_dropped_total{why="too_many"}': "+1",
    "headgate_records_dropped_total": "0",
    'headgate_cell_mode{instance="a",mode="island"}': "0",
    'headgate_cell_mode{instance="a",mode="following"}': "1",
    'headgate_cell_store_up{instance="a"}': "1",
    "headgate_cell_members_absent": "0",
    'headgate_ledger_rows_lost_total{why="spool"}': "0",
    'headgate_ledger_oldest_seconds{instance="a"}': "0.5",
    'headgate_ledger_database_up{instance="a"}': "1",
    'headgate_directory_fresh{instance="a"}': "1",
}
"""A gauge's value, or with + how much a counter rises in each step."""


@dataclass(frozen=True, slots=True)
class Trouble:
    alert: str
    changed: dict[str, str]
    after_s: int = 20 * MINUTE
    """When it is looked at."""
    step_s: int = MINUTE
    changed_at_step: int = 0
    """Until here all is healthy."""
    without: tuple[str, ...] = field(default=())


_CHAT_BAD = 'headgate_objective_good_total{class="chat",objective="ttft"}'
_COST = 'headgate_cost_usd_total{class="chat"}'

TROUBLES = (
    Trouble("HeadgateObjectiveBurnsFast", {_CHAT_BAD: "+500"}, HOUR),
    Trouble("HeadgateObjectiveBurns", {_CHAT_BAD: "+560"}, 6 * HOUR, step_s=5 * MINUTE),
    Trouble("HeadgateObjectiveBurnsSlowly", {_CHAT_BAD: "+590"}, 3 * DAY, step_s=HOUR),
    Trouble("HeadgateCostObjectiveMissed", {_COST: "+1.5"}, 2 * HOUR),
    Trouble("HeadgateTokensCostMore", {_COST: "+1.1"}, 8 * DAY, step_s=30 * MINUTE, changed_at_step=380),
    Trouble(
        "HeadgateRequestsCostMore",
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
    Trouble("HeadgateDemandOverCapacity", {'headgate_demand_over_capacity{pool="small"}': "1.4"}),
    Trouble("HeadgateKvFull", {'headgate_engine_kv_used_ratio{pool="small",endpoint="small/a"}': "0.97"}),
    Trouble("HeadgateLadderRaised", {'headgate_ladder_level{pool="small"}': "2"}),
    Trouble("HeadgateShedding", {'headgate_shed_fraction{pool="small"}': "0.2"}),
    Trouble("HeadgateRetryStorm", {'headgate_retries_total{pool="small"}': "+300"}),
    Trouble("HeadgateCallersRetry", {'headgate_requests_total{class="chat",outcome="retry_refused"}': "+200"}),
    Trouble("HeadgateOverBudget", {'headgate_requests_total{class="chat",outcome="over_budget"}': "+100"}),
    Trouble("HeadgateStageOverBudget", {'headgate_stage_over_budget_total{class="chat",stage="prefill"}': "+100"}),
    Trouble("HeadgateQueueWaitsTooLong", {'headgate_queue_wait_seconds_bucket{class="chat",le="0.1"}': "+100"}),
    Trouble("HeadgateNoReadyEndpoint", {'headgate_endpoints{pool="small",state="ready"}': "0"}),
    Trouble("HeadgateRequestsFail", {'headgate_requests_total{class="chat",outcome="engine_failed"}': "+100"}),
    Trouble("HeadgateEndpointsEjected", {'headgate_endpoint_ejections_total{pool="small"}': "+1"}),
    Trouble("HeadgateSignalMissing", {'headgate_endpoint_signal_missing{endpoint="small/a",signal="running"}': "1"}),
    Trouble("HeadgateTelemetryStale", {'headgate_endpoint_telemetry_age_seconds{endpoint="small/a"}': "90"}),
    Trouble("HeadgateAbsent", {}, without=('headgate_build_info{instance="a",version="1"}',)),
    Trouble("HeadgateLoopLag", {'headgate_loop_lag_seconds_bucket{instance="a",le="0.01"}': "+500"}),
    Trouble("HeadgateConfigurationsDiffer", {'headgate_config_info{instance="c",hash="y"}': "1"}),
    Trouble("HeadgateTracesDropped", {'headgate_traces_dropped_total{why="collector"}': "+1"}),
    Trouble("HeadgateRecordsDropped", {"headgate_records_dropped_total": "+1"}),
    Trouble("HeadgateCellIsland", {'headgate_cell_mode{instance="a",mode="island"}': "1"}),
    Trouble("HeadgateCellStoreDown", {'headgate_cell_store_up{instance="a"}': "0"}),
    Trouble("HeadgateCellMembersAbsent", {"headgate_cell_members_absent": "1"}),
    Trouble("HeadgateLedgerRowsLost", {'headgate_ledger_rows_lost_total{why="spool"}': "+1"}),
    Trouble("HeadgateLedgerBehind", {'headgate_ledger_oldest_seconds{instance="a"}': "900"}),
    Trouble("HeadgateLedgerDatabaseDown", {'headgate_ledger_database_up{instance="a"}': "0"}),
    Trouble("HeadgateDirectoryStale", {'headgate_directory_fresh{instance="a"}': "0"}),
)

YOUNG = tuple(
    Trouble(alert, {_COST: "+1.2"}, 22 * HOUR, step_s=5 * MINUTE, changed_at_step=20 * 12)
    for alert in ("HeadgateTokensCostMore", "HeadgateRequestsCostMore")
)
"""A gateway of 22 hours, dearer for the last two of them."""


DAY_STEP_S = 30 * MINUTE


def day_and_night(days: int, cost_of_one: Callable[[int], float]) -> dict[str, str]:
    """Ten times as much is asked by day as by night; what a request costs depends on the hours since the start."""
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
    'headgate_requests_total{class="chat",outcome="engine_failed"}': "0x10 3x300",
}
"""Three requests, all of them bad, and no other."""
