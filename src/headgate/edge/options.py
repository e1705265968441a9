"""Listener limits: how many requests and connections one process accepts, regardless of class."""

from dataclasses import dataclass

from headgate.model.units import SECOND, Duration

KIB = 1024
MIB = 1024 * KIB
FIELD_BYTES_MAX = 4 * KIB


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    body_bytes_max: int = 32 * MIB
    audio_body_bytes_max: int | None = None
    """Maximum size of the body of a request with an audio file. If None, `body_bytes_max` applies."""
    total_body_bytes_max: int = 1024 * MIB
    """Maximum total size of the bodies of all open requests, in bytes."""
    unverified_body_bytes_max: int = 64 * MIB
    """Maximum total size of the bodies of callers whose tokens cannot be verified until the issuer's keys have been
    read again.
    """
    requests_open_max: int = 20_000
    mirrors_open_max: int = 64
    """Maximum number of copies of requests in progress. When it is reached, further requests are not copied."""
    connections_open_max: int = 25_000
    """Maximum number of open connections. When it is reached, new connections are closed immediately."""
    unauthenticated_connections_max: int = 4_096
    """Maximum number of connections that have not sent a valid key. When it is exceeded, the oldest of them is closed.

    Twice the accept backlog, so that a burst of reconnecting clients is accepted.
    """
    header_bytes_max: int = 64 * KIB
    header_count_max: int = 100
    """Maximum number of header lines per request."""
    field_bytes_max: int = FIELD_BYTES_MAX
    """Maximum size of one header line, and of the names in a body (`model`, `service_tier`), in bytes."""
    header_timeout_ns: Duration = Duration(10 * SECOND)
    """Maximum time for a request head, from its first byte, and for a new connection to send that byte."""
    body_timeout_ns: Duration = Duration(60 * SECOND)
    """Maximum time for a request body, from the end of the head."""
    keepalive_timeout_ns: Duration = Duration(75 * SECOND)
    """Maximum idle time of a connection between two requests."""
    send_timeout_ns: Duration = Duration(30 * SECOND)
    """Maximum time for which a client may leave its response unread before the connection is reset."""

    @property
    def form_bytes_max(self) -> int:
        """Maximum size of the body of a request with an audio file."""
        return self.body_bytes_max if self.audio_body_bytes_max is None else self.audio_body_bytes_max

    @property
    def any_body_bytes_max(self) -> int:
        """Maximum size of the body of any request."""
        return max(self.body_bytes_max, self.form_bytes_max)

    @property
    def discarded_bytes_max(self) -> int:
        """Maximum bytes of a request body that are discarded so that the client can read an early response."""
        return max(MIB, 4 * self.any_body_bytes_max)
