"""When can a pool not serve, or does it serve blindly?"""

from collections.abc import Iterator
from typing import Final

from headgate.slo.alert import Alert, Severity
from headgate.slo.lengths import MINUTE, Length

TELEMETRY_S_MAX: Final = 20
"""As old as what an engine told may be before it counts as stale."""
EJECTIONS_MIN: Final = 3
UNSERVED_MAX: Final = 0.05
REQUESTS_MIN: Final = 10
"""Unserved within the window; of fewer nobody is told."""
_UNSERVED: Final = "engine_failed|engine_silent|gateway_failed|no_endpoints|expired|too_late|unverified"


def serving_alerts(length: Length) -> Iterator[Alert]:
    yield Alert(
        "HeadgateNoReadyEndpoint",
        'max by (pool) (headgate_endpoints{state="ready"}) == 0 unless on (pool) headgate_endpoints_wanted == 0',
        Severity.PAGE,
        "no_ready_endpoint",
        "pool {{ $labels.pool }}: no endpoint is ready",
        "Its callers are refused. `headgate status` has the state of each endpoint, `headgate doctor` why.",
        lasting_s=MINUTE,
    )
    yield _unserved(length)
    yield Alert(
        "HeadgateEndpointsEjected",
        f"sum by (pool) (increase(headgate_endpoint_ejections_total[{length(15 * MINUTE)}])) >= {EJECTIONS_MIN}",
        Severity.TICKET,
        "endpoint_ejections",
        "pool {{ $labels.pool }}: endpoints were ejected {{ $value | humanize }} times within 15 minutes",
        "`headgate status` shows which, `headgate explain --outcome engine_failed --since 15m` what they did.",
    )
    yield Alert(
        "HeadgateSignalMissing",
        "max by (endpoint, signal) (headgate_endpoint_signal_missing) == 1",
        Severity.TICKET,
        "signals_missing",
        "endpoint {{ $labels.endpoint }} does not tell {{ $labels.signal }}",
        "Requests go on, routed by our own count. `headgate status` says what is missing and what to do.",
        lasting_s=MINUTE,
    )
    yield Alert(
        "HeadgateTelemetryStale",
        f"min by (endpoint) (headgate_endpoint_telemetry_age_seconds) > {TELEMETRY_S_MAX}",
        Severity.TICKET,
        "signals_missing",
        "endpoint {{ $labels.endpoint }} last told its load {{ $value | humanizeDuration }} ago",
        "For all endpoints at once, look at the network between gateway and engines. `headgate status` shows all.",
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
        "By engines that fail, are silent or are not there, or in our queue. `headgate doctor --live` says which, and"
        " `headgate explain --outcome engine_failed --since 10m` shows some.",
        lasting_s=2 * MINUTE,
    )
