"""Metrics and log lines for TLS on the gateway's listeners."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.telemetry.exposition import MetricFamily, family
from headgate.telemetry.log import LogLimit, log, log_event
from headgate.wire.escape import printable

_DETAIL_CHARS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class ListenerTlsStats:
    listener: str
    """Name of the listener's setting, `listen` or `admin_listen`."""
    expires_in_s: float
    """Time until the certificate in use expires; negative once it has expired."""
    reload_failed: bool
    """Whether the files have changed since but cannot be used."""
    handshake_failures: Mapping[str, int]
    """Number of failed handshakes by reason, for all reasons."""


def tls_metrics(listeners: Sequence[ListenerTlsStats]) -> Iterator[MetricFamily]:
    if not listeners:
        return
    failures = family("headgate_tls_handshake_failures_total")
    expiry = family("headgate_tls_certificate_expires_in_seconds")
    reload_failed = family("headgate_tls_certificate_reload_failed")
    for each in listeners:
        for reason, count in each.handshake_failures.items():
            failures.add((each.listener, reason), count)
        expiry.add((each.listener,), each.expires_in_s)
        reload_failed.add((each.listener,), each.reload_failed)
    yield from (failures, expiry, reload_failed)


class HandshakeLog:
    """Logs the failed handshakes of one listener."""

    def __init__(self, listener: str, now_s: Callable[[], float]) -> None:
        """`now_s` returns the time in seconds."""
        self._listener = listener
        self._limit = LogLimit("suppressed TLS handshake log lines", now_s, listener=listener)

    def log_failure(self, reason: str, client: str, detail: str, *, level: int = logging.INFO) -> None:
        # Port checks must not use up the limit for other failures.
        if log.isEnabledFor(level) and self._limit.allows():
            log_event(
                level,
                "TLS handshake failed",
                listener=self._listener,
                reason=reason,
                client=client,
                **({"detail": printable(detail, _DETAIL_CHARS_MAX)} if detail else {}),
            )
