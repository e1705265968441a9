"""Metric catalogue rows for TLS on the gateway's listeners."""

from typing import Final

from headgate.telemetry.metric_definition import counter, gauge

_TLS: Final = "the listener has [TLS](configuration.md#listen_tls)"

TLS: Final = (
    counter(
        "headgate_tls_handshake_failures_total",
        "listener reason",
        "Failed TLS handshakes by listener and reason.",
        "`listener` is `listen` or `admin_listen`. `plain_http`: the client sent HTTP without TLS. "
        "`client_certificate`: the client presented no valid certificate. `rejected_by_client`: the client does not "
        "trust the gateway's certificate. `no_common_protocol`: no common TLS version or cipher. `timeout`: the "
        "handshake took longer than `limits.header_timeout`. `closed`: the client closed the connection. `invalid`: "
        "the client sent bytes that are not a TLS handshake.",
        exposed_when=_TLS,
    ),
    gauge(
        "headgate_tls_certificate_expires_in_seconds",
        "listener",
        "Time until the certificate in use expires.",
        "Negative once it has expired.",
        exposed_when=_TLS,
    ),
    gauge(
        "headgate_tls_certificate_reload_failed",
        "listener",
        "1 if the certificate files have changed but cannot be used, otherwise 0.",
        "The previous certificate stays in use. `headgate status` shows the problem.",
        exposed_when=_TLS,
    ),
)
