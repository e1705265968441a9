"""Alerts on saturation: demand, KV cache, degradation, load shedding, retries, budgets and queue wait."""

from collections.abc import Iterator
from typing import Final

from headgate.slo.alert import OF_THE_INCIDENT, Alert, Severity
from headgate.slo.lengths import MINUTE, Length
from headgate.slo.promises import ClassPromises
from headgate.telemetry.verdicts import GATEWAY

KV_FULL: Final = 0.95
SHED_MIN: Final = 0.01
RETRIES_MAX: Final = 0.2
"""Share of attempts. Retries have a budget; a larger share means widespread failures."""
CALLER_RETRIES_MAX: Final = 0.1
"""Share of requests rejected because the tenant's retry budget is exhausted."""
OVER_BUDGET_MAX: Final = 0.05
STAGE_OVER_BUDGET_MAX: Final = 0.05
REQUESTS_MIN: Final = 10
"""Within the window. A share of fewer requests is not meaningful."""


def incident_alert() -> Alert:
    """One alert per pool, however many gateways report it, and one per gateway for its own incidents."""
    wrong = 'headgate_incident{incident!="healthy",pool'
    return Alert(
        "HeadgateIncident",
        f'max by (pool, incident) ({wrong}!="{GATEWAY}"}}) == 1'
        f' or max by (pool, incident, instance) ({wrong}="{GATEWAY}"}}) == 1',
        Severity.TICKET,
        OF_THE_INCIDENT,
        f'{{{{ if eq $labels.pool "{GATEWAY}" }}}}gateway {{{{ $labels.instance }}}}'
        "{{ else }}pool {{ $labels.pool }}{{ end }}: {{ $labels.incident }}",
        "The gateway has reported this incident for one minute. `headgate doctor --live` shows the evidence, the"
        " affected requests and the first step.",
        lasting_s=MINUTE,
    )


def saturation_alerts(length: Length) -> Iterator[Alert]:
    yield Alert(
        "HeadgateDemandOverCapacity",
        "max by (pool) (headgate_demand_over_capacity) > 1",
        Severity.TICKET,
        "overload",
        "pool {{ $labels.pool }}: demand is {{ $value | humanize }} times the capacity of its endpoints",
        "Add endpoints or reduce the load. `headgate status` shows demand and capacity.",
        lasting_s=5 * MINUTE,
    )
    yield Alert(
        "HeadgateKvFull",
        f"min by (pool) (headgate_engine_kv_used_ratio) > {KV_FULL:g}",
        Severity.TICKET,
        "kv_exhausted",
        "pool {{ $labels.pool }}: the KV cache of every endpoint is at least {{ $value | humanizePercentage }} full",
        "Engines start to preempt requests and compute them again. `headgate doctor --live` shows the cause.",
        lasting_s=5 * MINUTE,
    )
    yield Alert(
        "HeadgateLadderRaised",
        "max by (pool) (headgate_ladder_level) >= 1",
        Severity.TICKET,
        "ladder_raised",
        "pool {{ $labels.pool }}: degradation level {{ $value }}",
        "Responses are shorter or come from smaller models. `headgate status` shows the level.",
        lasting_s=10 * MINUTE,
    )
    yield Alert(
        "HeadgateShedding",
        f"max by (pool) (headgate_shed_fraction) > {SHED_MIN:g}",
        Severity.PAGE,
        "shedding",
        "pool {{ $labels.pool }}: load shedding rejects {{ $value | humanizePercentage }} of arriving requests",
        "Callers get 429 with Retry-After. `headgate doctor --live` shows whether demand, an engine or a tenant is the"
        " cause.",
        lasting_s=5 * MINUTE,
    )
    yield from _of_callers(length)


def _of_callers(length: Length) -> Iterator[Alert]:
    over = length(5 * MINUTE)
    attempts = f"sum by (pool) (increase(headgate_attempts_total[{over}]))"
    yield Alert(
        "HeadgateRetryStorm",
        f"sum by (pool) (increase(headgate_retries_total[{over}])) / {attempts} > {RETRIES_MAX:g}"
        f" and {attempts} >= {REQUESTS_MIN}",
        Severity.PAGE,
        "retry_storm",
        "pool {{ $labels.pool }}: {{ $value | humanizePercentage }} of attempts are retries",
        "Failures are widespread. `headgate explain --outcome engine_failed --since 10m` shows how.",
        lasting_s=2 * MINUTE,
    )
    yield Alert(
        "HeadgateCallersRetry",
        _share("retry_refused", CALLER_RETRIES_MAX, over),
        Severity.TICKET,
        "retry_storm",
        "class {{ $labels.class }}: {{ $value | humanizePercentage }} of requests exceed the tenant's retry budget",
        "`headgate explain --outcome retry_refused --since 10m` shows the tenants.",
        lasting_s=10 * MINUTE,
    )
    yield Alert(
        "HeadgateOverBudget",
        _share("over_budget", OVER_BUDGET_MAX, over),
        Severity.TICKET,
        "over_budget",
        "class {{ $labels.class }}: {{ $value | humanizePercentage }} of requests are rejected for an exceeded budget",
        "`headgate budgets show` shows whose budget it is and when it resets.",
        lasting_s=10 * MINUTE,
    )
    stage = f"sum by (class, stage) (increase(headgate_stage_over_budget_total[{over}]))"
    every = f"sum by (class, stage) (increase(headgate_stage_seconds_count[{over}]))"
    yield Alert(
        "HeadgateStageOverBudget",
        f"{stage} / {every} > {STAGE_OVER_BUDGET_MAX:g} and {every} >= {REQUESTS_MIN}",
        Severity.TICKET,
        "stage_over_budget",
        "class {{ $labels.class }}: {{ $value | humanizePercentage }} exceed the budget of stage {{ $labels.stage }}",
        "`headgate explain --class {{ $labels.class }} --since 10m` shows where requests spend their time.",
        lasting_s=10 * MINUTE,
    )


def _share(outcome: str, share: float, over: str) -> str:
    """Condition: the share of a class's requests with this outcome is above `share`."""
    some = f'sum by (class) (increase(headgate_requests_total{{outcome="{outcome}"}}[{over}]))'
    every = f"sum by (class) (increase(headgate_requests_total[{over}]))"
    return f"{some} / {every} > {share:g} and {some} >= {REQUESTS_MIN}"


def queue_alert(promises: ClassPromises) -> Iterator[Alert]:
    if promises.ttft_s is not None:
        yield Alert(
            "HeadgateQueueWaitsTooLong",
            f'class:headgate_queue_wait_seconds:p95_5m{{class="{promises.name}"}} > {promises.ttft_s:g}',
            Severity.TICKET,
            "queue_wait",
            f"class {promises.name}: the 95th percentile of queue wait is {{{{ $value | humanizeDuration }}}}",
            f"The target for the first token is {promises.ttft_s:g} s, so these requests miss it in the queue."
            " `headgate doctor --live` shows the cause.",
            lasting_s=5 * MINUTE,
            labels=(("class", promises.name),),
        )
