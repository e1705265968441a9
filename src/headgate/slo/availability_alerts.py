"""Alerts on availability: endpoints, failed requests and missing engine metrics."""

from collections.abc import Iterator
from typing import Final

from headgate.model.routes import MIRROR_CLASS
from headgate.slo.alert import Alert, Severity
from headgate.slo.durations import MINUTE, DurationFormat

ENGINE_METRICS_AGE_S_MAX: Final = 20
"""Age in seconds at which engine metrics count as stale."""
EJECTIONS_MIN: Final = 3
ERROR_RATIO_MAX: Final = 0.05
REQUESTS_MIN: Final = 10
"""Minimum number of failed requests in the window. With fewer, the alert does not fire."""
_ERROR_OUTCOMES: Final = (
    "engine_error|engine_timeout|internal_error|no_endpoints|queue_timeout|deadline_exceeded|key_unverified"
)


def availability_alerts(length: DurationFormat) -> Iterator[Alert]:
    yield Alert(
        "HeadgateNoReadyEndpoint",
        'max by (pool) (headgate_endpoints{state="ready"}) == 0 unless on (pool) headgate_endpoints_desired == 0',
        Severity.PAGE,
        "no_ready_endpoint",
        "pool {{ $labels.pool }}: no endpoint is ready",
        "Requests are being rejected. `headgate status` shows each endpoint's state, and `headgate doctor` shows why.",
        for_s=MINUTE,
    )
    yield _error_rate_alert(length)
    yield Alert(
        "HeadgateEndpointsEjected",
        f"sum by (pool) (increase(headgate_endpoint_ejections_total[{length(15 * MINUTE)}])) >= {EJECTIONS_MIN}",
        Severity.TICKET,
        "endpoint_ejections",
        "pool {{ $labels.pool }}: {{ $value | humanize }} endpoint ejections in 15 minutes",
        "`headgate status` lists the endpoints; `headgate explain --outcome engine_error --since 15m` lists failures.",
    )
    yield Alert(
        "HeadgateEngineMetricMissing",
        "max by (endpoint, metric) (headgate_engine_metric_missing) == 1",
        Severity.TICKET,
        "engine_metrics_missing",
        "endpoint {{ $labels.endpoint }}: engine metric {{ $labels.metric }} is missing",
        "The scheduler is routing by its own attempt counts. `headgate status` shows what is missing and what to do.",
        for_s=MINUTE,
    )
    yield Alert(
        "HeadgateEngineMetricsStale",
        f"min by (endpoint) (headgate_engine_metrics_age_seconds) > {ENGINE_METRICS_AGE_S_MAX}",
        Severity.TICKET,
        "engine_metrics_missing",
        "endpoint {{ $labels.endpoint }}: engine metrics are {{ $value | humanizeDuration }} old",
        "If all endpoints are affected, check the network between gateway and engines. `headgate status` lists them.",
        for_s=MINUTE,
    )


def _error_rate_alert(length: DurationFormat) -> Alert:
    over = length(5 * MINUTE)
    # No caller receives the response to a copy.
    answered = f'class!="{MIRROR_CLASS}"'
    some = f'sum by (class) (increase(headgate_requests_total{{{answered}, outcome=~"{_ERROR_OUTCOMES}"}}[{over}]))'
    every = f"sum by (class) (increase(headgate_requests_total{{{answered}}}[{over}]))"
    return Alert(
        "HeadgateErrorRateHigh",
        f"{some} / {every} > {ERROR_RATIO_MAX:g} and {some} >= {REQUESTS_MIN}",
        Severity.PAGE,
        "error_rate",
        "class {{ $labels.class }}: {{ $value | humanizePercentage }} of requests are failing",
        "Engines are failing, timing out or missing, or requests are expiring in the queue. `headgate doctor --live`"
        " shows the cause, and `headgate explain --outcome engine_error --since 10m` shows examples.",
        for_s=2 * MINUTE,
    )
