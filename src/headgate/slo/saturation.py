"""When is more asked than there is?"""

from collections.abc import Iterator
from typing import Final

from headgate.slo.alert import OF_THE_INCIDENT, Alert, Severity
from headgate.slo.lengths import MINUTE, Length
from headgate.slo.promises import ClassPromises
from headgate.telemetry.verdicts import GATEWAY

KV_FULL: Final = 0.95
SHED_MIN: Final = 0.01
RETRIES_MAX: Final = 0.2
"""Of attempts. Ours are bounded by a budget; more than this means that something fails for everybody."""
CALLER_RETRIES_MAX: Final = 0.1
"""Of requests, those refused because they came again too soon."""
OVER_BUDGET_MAX: Final = 0.05
STAGE_OVER_BUDGET_MAX: Final = 0.05
REQUESTS_MIN: Final = 10
"""Within the window; no share of fewer is worth a word."""


def incident_alert() -> Alert:
    """A pool is the same wherever it is told of; what is told of a gateway is about that process."""
    wrong = 'headgate_incident{incident!="healthy",pool'
    return Alert(
        "HeadgateIncident",
        f'max by (pool, incident) ({wrong}!="{GATEWAY}"}}) == 1'
        f' or max by (pool, incident, instance) ({wrong}="{GATEWAY}"}}) == 1',
        Severity.TICKET,
        OF_THE_INCIDENT,
        f'{{{{ if eq $labels.pool "{GATEWAY}" }}}}gateway {{{{ $labels.instance }}}}'
        "{{ else }}pool {{ $labels.pool }}{{ end }}: {{ $labels.incident }}",
        "The gateway's own verdict, for a minute. `headgate doctor --live` has the evidence, who is affected, and what"
        " to do first.",
        lasting_s=MINUTE,
    )


def saturation_alerts(length: Length) -> Iterator[Alert]:
    yield Alert(
        "HeadgateDemandOverCapacity",
        "max by (pool) (headgate_demand_over_capacity) > 1",
        Severity.TICKET,
        "overload",
        "pool {{ $labels.pool }}: {{ $value | humanize }} times as much is asked as its endpoints can give",
        "Add endpoints, or lower what is asked. `headgate status` shows both sides.",
        lasting_s=5 * MINUTE,
    )
    yield Alert(
        "HeadgateKvFull",
        f"min by (pool) (headgate_engine_kv_used_ratio) > {KV_FULL:g}",
        Severity.TICKET,
        "kv_exhausted",
        "pool {{ $labels.pool }}: every endpoint's KV cache is over {{ $value | humanizePercentage }} full",
        "Engines begin to preempt, which computes everything twice. `headgate doctor --live` says who fills them.",
        lasting_s=5 * MINUTE,
    )
    yield Alert(
        "HeadgateLadderRaised",
        "max by (pool) (headgate_ladder_level) >= 1",
        Severity.TICKET,
        "ladder_raised",
        "pool {{ $labels.pool }}: quality is given up, at level {{ $value }}",
        "Answers are shorter or of smaller models for as long as this lasts. `headgate status` shows the level.",
        lasting_s=10 * MINUTE,
    )
    yield Alert(
        "HeadgateShedding",
        f"max by (pool) (headgate_shed_fraction) > {SHED_MIN:g}",
        Severity.PAGE,
        "shedding",
        "pool {{ $labels.pool }}: {{ $value | humanizePercentage }} of what arrives is refused by rank",
        "Callers are told to come again. `headgate doctor --live` says whether demand, an engine or a tenant is at the"
        " bottom of it.",
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
        "pool {{ $labels.pool }}: {{ $value | humanizePercentage }} of attempts are made anew",
        "Something fails for everybody. `headgate explain --outcome engine_failed --since 10m` shows how.",
        lasting_s=2 * MINUTE,
    )
    yield Alert(
        "HeadgateCallersRetry",
        _share("retry_refused", CALLER_RETRIES_MAX, over),
        Severity.TICKET,
        "retry_storm",
        "class {{ $labels.class }}: {{ $value | humanizePercentage }} of requests come again sooner than told",
        "`headgate explain --outcome retry_refused --since 10m` names who.",
        lasting_s=10 * MINUTE,
    )
    yield Alert(
        "HeadgateOverBudget",
        _share("over_budget", OVER_BUDGET_MAX, over),
        Severity.TICKET,
        "over_budget",
        "class {{ $labels.class }}: {{ $value | humanizePercentage }} of requests are refused since a budget is spent",
        "`headgate budgets show` says whose, and until when.",
        lasting_s=10 * MINUTE,
    )
    stage = f"sum by (class, stage) (increase(headgate_stage_over_budget_total[{over}]))"
    every = f"sum by (class, stage) (increase(headgate_stage_seconds_count[{over}]))"
    yield Alert(
        "HeadgateStageOverBudget",
        f"{stage} / {every} > {STAGE_OVER_BUDGET_MAX:g} and {every} >= {REQUESTS_MIN}",
        Severity.TICKET,
        "stage_over_budget",
        "class {{ $labels.class }}: stage {{ $labels.stage }} is over its budget in {{ $value | humanizePercentage }}",
        "`headgate explain --class {{ $labels.class }} --since 10m` shows where requests lose their time.",
        lasting_s=10 * MINUTE,
    )


def _share(outcome: str, share: float, over: str) -> str:
    """Of the requests of a class, those that ended in one way."""
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
            f"class {promises.name}: one in twenty waits {{{{ $value | humanizeDuration }}}} in our queue",
            f"Its first token is due after {promises.ttft_s:g} s, and the wait alone is longer."
            " `headgate doctor --live` says what it waits for.",
            lasting_s=5 * MINUTE,
            labels=(("class", promises.name),),
        )
