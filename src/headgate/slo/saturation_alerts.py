"""Alerts on saturation: demand, KV cache, degradation, load shedding, retries, budgets and queue wait."""

from collections.abc import Iterator
from typing import Final

from headgate.slo.alert import INCIDENT_RUNBOOK, Alert, Severity
from headgate.slo.durations import MINUTE, DurationFormat
from headgate.slo.objectives import ClassObjectives
from headgate.telemetry.verdict_metrics import GATEWAY_POOL

KV_USAGE_MAX: Final = 0.95
SHED_RATIO_MIN: Final = 0.01
RETRY_RATIO_MAX: Final = 0.2
"""Maximum share of attempts that are retries. Retries have a budget, so a larger share means widespread failures."""
CLIENT_RETRY_RATIO_MAX: Final = 0.1
"""Maximum share of requests rejected because the tenant's retry budget is exhausted."""
BUDGET_EXCEEDED_RATIO_MAX: Final = 0.05
STAGE_OVER_BUDGET_RATIO_MAX: Final = 0.05
REQUESTS_MIN: Final = 10
"""Minimum number of requests in the window. With fewer, the share is not meaningful."""


def incident_alert() -> Alert:
    """One alert per pool, however many gateways report the incident, and one per gateway for its own incidents."""
    wrong = 'headgate_incident{incident!="healthy",pool'
    return Alert(
        "HeadgateIncident",
        f'max by (pool, incident) ({wrong}!="{GATEWAY_POOL}"}}) == 1'
        f' or max by (pool, incident, instance) ({wrong}="{GATEWAY_POOL}"}}) == 1',
        Severity.TICKET,
        INCIDENT_RUNBOOK,
        f'{{{{ if eq $labels.pool "{GATEWAY_POOL}" }}}}gateway {{{{ $labels.instance }}}}'
        "{{ else }}pool {{ $labels.pool }}{{ end }}: {{ $labels.incident }}",
        "The gateway has reported this incident for one minute. `headgate doctor --live` shows the evidence, the"
        " affected requests and the first step.",
        for_s=MINUTE,
    )


def saturation_alerts(length: DurationFormat) -> Iterator[Alert]:
    yield Alert(
        "HeadgateDemandExceedsCapacity",
        "max by (pool) (headgate_demand_to_capacity_ratio) > 1",
        Severity.TICKET,
        "overload",
        "pool {{ $labels.pool }}: demand is {{ $value | humanize }} times the capacity of its endpoints",
        "Add endpoints or reduce the load. `headgate status` shows demand and capacity.",
        for_s=5 * MINUTE,
    )
    yield Alert(
        "HeadgateKvCacheFull",
        f"min by (pool) (headgate_engine_kv_cache_usage_ratio) > {KV_USAGE_MAX:g}",
        Severity.TICKET,
        "kv_exhausted",
        "pool {{ $labels.pool }}: the KV cache of every endpoint is at least {{ $value | humanizePercentage }} full",
        "Engines will start preempting requests and recomputing them. `headgate doctor --live` shows the cause.",
        for_s=5 * MINUTE,
    )
    yield Alert(
        "HeadgateDegraded",
        "max by (pool) (headgate_degradation_level) >= 1",
        Severity.TICKET,
        "degraded",
        "pool {{ $labels.pool }}: degradation level {{ $value }}",
        "Responses are shorter or come from smaller models. `headgate status` shows the level.",
        for_s=10 * MINUTE,
    )
    yield Alert(
        "HeadgateLoadShedding",
        f"max by (pool) (headgate_shed_ratio) > {SHED_RATIO_MIN:g}",
        Severity.PAGE,
        "load_shedding",
        "pool {{ $labels.pool }}: load shedding is rejecting {{ $value | humanizePercentage }} of arriving requests",
        "Callers get a 429 with Retry-After. `headgate doctor --live` shows whether the cause is demand, an engine or a"
        " tenant.",
        for_s=5 * MINUTE,
    )
    yield from _client_alerts(length)


def _client_alerts(length: DurationFormat) -> Iterator[Alert]:
    over = length(5 * MINUTE)
    attempts = f"sum by (pool) (increase(headgate_attempts_total[{over}]))"
    yield Alert(
        "HeadgateRetryStorm",
        f"sum by (pool) (increase(headgate_retries_total[{over}])) / {attempts} > {RETRY_RATIO_MAX:g}"
        f" and {attempts} >= {REQUESTS_MIN}",
        Severity.PAGE,
        "retry_storm",
        "pool {{ $labels.pool }}: {{ $value | humanizePercentage }} of attempts are retries",
        "Failures are widespread. `headgate explain --outcome engine_error --since 10m` shows the errors.",
        for_s=2 * MINUTE,
    )
    yield Alert(
        "HeadgateClientRetriesHigh",
        _outcome_ratio("retry_budget_exhausted", CLIENT_RETRY_RATIO_MAX, over),
        Severity.TICKET,
        "retry_storm",
        "class {{ $labels.class }}: {{ $value | humanizePercentage }} of requests exceed the tenant's retry budget",
        "`headgate explain --outcome retry_budget_exhausted --since 10m` shows which tenants are affected.",
        for_s=10 * MINUTE,
    )
    yield Alert(
        "HeadgateBudgetExceeded",
        _outcome_ratio("budget_exceeded", BUDGET_EXCEEDED_RATIO_MAX, over),
        Severity.TICKET,
        "budget_exceeded",
        "class {{ $labels.class }}: {{ $value | humanizePercentage }} of requests are rejected because a budget is"
        " exceeded",
        "`headgate budgets show` shows whose budget it is and when it resets.",
        for_s=10 * MINUTE,
    )
    stage = f"sum by (class, stage) (increase(headgate_stage_over_budget_total[{over}]))"
    every = f"sum by (class, stage) (increase(headgate_stage_duration_seconds_count[{over}]))"
    yield Alert(
        "HeadgateStageOverBudget",
        f"{stage} / {every} > {STAGE_OVER_BUDGET_RATIO_MAX:g} and {every} >= {REQUESTS_MIN}",
        Severity.TICKET,
        "stage_over_budget",
        "class {{ $labels.class }}: {{ $value | humanizePercentage }} of requests exceed the"
        " {{ $labels.stage }} stage budget",
        "`headgate explain --class {{ $labels.class }} --since 10m` shows where requests spend their time.",
        for_s=10 * MINUTE,
    )


def _outcome_ratio(outcome: str, share: float, over: str) -> str:
    """PromQL condition that is true if the share of a class's requests with this outcome exceeds `share`."""
    some = f'sum by (class) (increase(headgate_requests_total{{outcome="{outcome}"}}[{over}]))'
    every = f"sum by (class) (increase(headgate_requests_total[{over}]))"
    return f"{some} / {every} > {share:g} and {some} >= {REQUESTS_MIN}"


def queue_wait_alert(objectives: ClassObjectives) -> Iterator[Alert]:
    if objectives.ttft_s is not None:
        yield Alert(
            "HeadgateQueueWaitHigh",
            f'class:headgate_queue_wait_seconds:p95_5m{{class="{objectives.name}"}} > {objectives.ttft_s:g}',
            Severity.TICKET,
            "queue_wait",
            f"class {objectives.name}: the 95th percentile of queue wait is {{{{ $value | humanizeDuration }}}}",
            f"The time-to-first-token target is {objectives.ttft_s:g} s, so these requests miss it while still queued."
            " `headgate doctor --live` shows the cause.",
            for_s=5 * MINUTE,
            labels=(("class", objectives.name),),
        )
