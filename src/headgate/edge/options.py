"""Limits of the listeners: the requests and connections that one process accepts, whatever their classes."""

from dataclasses import dataclass

from headgate.model.units import SECOND, Duration

KIB = 1024
MIB = 1024 * KIB
FIELD_BYTES_MAX = 4 * KIB


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    body_bytes_max: int = 32 * MIB
    bodies_bytes_max: int = 1024 * MIB
    """Total size of the bodies of all open requests."""
    requests_open_max: int = 20_000
    connections_open_max: int = 25_000
    """Further connections are closed immediately."""
    unauthenticated_connections_max: int = 4_096
    """Maximum number of connections that have not sent a valid key. Above it the oldest of them is closed.

    Twice the accept backlog, so that a burst of reconnecting clients is served."""
    head_bytes_max: int = 64 * KIB
    headers_max: int = 100
    """Header lines per request."""
    field_bytes_max: int = FIELD_BYTES_MAX
    """Maximum size of one header line, and of the names in a body (`model`, `service_tier`)."""
    head_ns_max: Duration = Duration(10 * SECOND)
    """Time for a request's head, from its first byte, and for a new connection to send that byte."""
    receive_ns_max: Duration = Duration(60 * SECOND)
    """Time for a request's body, from the end of its head."""
    idle_ns_max: Duration = Duration(75 * SECOND)
    """Time that a connection may stay open between two requests."""
    client_stall_ns_max: Duration = Duration(30 * SECOND)
    """Time that a client may leave its response unread before the connection is reset."""

    @property
    def passed_over_bytes_max(self) -> int:
        """Bytes of an unread request body that are discarded so that the client can read the response."""
        return max(MIB, 4 * self.body_bytes_max)
