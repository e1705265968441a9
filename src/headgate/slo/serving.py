"""Alerts on availability: endpoints, failed requests and missing engine metrics."""

from collections.abc import Iterator
from typing import Final

from headgate.slo.alert import Alert, Severity
from headgate.slo.lengths import MINUTE, Length

TELEMETRY_S_MAX: Final = 20
"""Age in seconds at which engine metrics count as stale."""
EJECTIONS_MIN: Final = 3
UNSERVED_MAX: Final = 0.05
REQUESTS_MIN: Final = 10
"""Failed requests within the window. The alert does not fire for fewer."""
_UNSERVED: Final = "engine_failed|engine_silent|gateway_failed|no_endpoints|expired|too_late|unverified"


def serving_alerts(length: Length) -> Iterator[Alert]:
    yield Alert(
        "HeadgateNoReadyEndpoint",
        'max by (pool) (headgate_endpoints{state="ready"}) == 0 unless on (pool) headgate_endpoints_wanted == 0',
        Severity.PAGE,
        "no_ready_endpoint",
        "pool {{ $labels.pool }}: no endpoint is ready",
        "Requests are rejected. `headgate status` shows the state of each endpoint, and `headgate doctor` the reason.",
        lasting_s=MINUTE,
    )
    yield _unserved(length)
    yield Alert(
        "HeadgateEndpointsEjected",
        f"sum by (pool) (increase(headgate_endpoint_ejections_total[{length(15 * MINUTE)}])) >= {EJECTIONS_MIN}",
        Severity.TICKET,
        "endpoint_ejections",
        "pool {{ $labels.pool }}: {{ $value | humanize }} endpoint ejections in 15 minutes",
        "`headgate status` shows the endpoints, `headgate explain --outcome engine_failed --since 15m` their failures.",
    )
    yield Alert(
        "HeadgateSignalMissing",
        "max by (endpoint, signal) (headgate_endpoint_signal_missing) == 1",
        Severity.TICKET,
        "signals_missing",
        "endpoint {{ $labels.endpoint }}: engine metric {{ $labels.signal }} is missing",
        "The scheduler routes by its own count of attempts. `headgate status` shows what is missing and the next step.",
        lasting_s=MINUTE,
    )
    yield Alert(
        "HeadgateTelemetryStale",
        f"min by (endpoint) (headgate_endpoint_telemetry_age_seconds) > {TELEMETRY_S_MAX}",
        Severity.TICKET,
        "signals_missing",
        "endpoint {{ $labels.endpoint }}: engine metrics are {{ $value | humanizeDuration }} old",
        "If all endpoints are affected, check the network to the engines. `headgate status` lists them.",
        lasting_s=MINUTE,
    )


def _unserved(length: Length) -> Alert:
    over = length(5 * MINUTE)
    some = f'sum by (class) (increase(headgate_requests_total{{outcome=~"{_UNSERVED}"}}[{over}]))'
    every = f"sum by (class) (increase(headgate_requests_total[{over}]))"
    return Alert(
        "HeadgateRequestsFail",
        f"{some} / {every} > {UNSERVED_MAX:g} and {some} >= {REQUESTS_MIN}",
        Severity.PAGE,
        "requests_fail",
        "class {{ $labels.class }}: {{ $value | humanizePercentage }} of requests fail",
        "Engines fail, time out or are missing, or requests expire in the queue. `headgate doctor --live` shows the"
        " cause, and `headgate explain --outcome engine_failed --since 10m` shows examples.",
        lasting_s=2 * MINUTE,
    )
