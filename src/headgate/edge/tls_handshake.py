"""TLS handshake on a new client connection, before HTTP begins.

A connection counts against the limits of its listener as soon as it is accepted, not only after its handshake. Each
handshake uses the newest context, so a new certificate applies to new connections and open ones continue.
"""

import asyncio
import socket
import ssl
from enum import StrEnum
from math import inf
from typing import Protocol

from headgate.edge.connection import Connection, ListenerContext
from headgate.edge.tls_stream import TlsStream
from headgate.model.units import SECOND


class HandshakeFailure(StrEnum):
    """Why a TLS handshake failed."""

    PLAIN_HTTP = "plain_http"
    """The client sent an HTTP request without TLS."""
    CLIENT_CERTIFICATE = "client_certificate"
    """The client presented no valid certificate."""
    REJECTED_BY_CLIENT = "rejected_by_client"
    """The client rejected the gateway's certificate, for example because it has expired or is for a different name."""
    NO_COMMON_PROTOCOL = "no_common_protocol"
    """Client and gateway have no TLS version or cipher in common."""
    TIMEOUT = "timeout"
    CLOSED = "closed"
    """The client closed the connection."""
    INVALID = "invalid"
    """The client sent bytes that are not a TLS handshake."""


class TlsListenerContext(ListenerContext, Protocol):
    tls: ssl.SSLContext | None
    tasks: set[asyncio.Task[None]]

    def on_handshake_failed(self, why: HandshakeFailure, client: str, detail: str) -> None: ...


class TlsHandshake:
    """An accepted connection until its handshake ends. Then a `Connection` takes over."""

    is_unused = True
    timeout_at = inf
    """The event loop enforces the timeout of the handshake."""

    def __init__(self, others: TlsListenerContext, accepted: socket.socket) -> None:
        self._others = others
        self._accepted = accepted
        self._client = _peer_address(accepted)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if not self._others.add(self, self._accepted.fileno()):
            self._accepted.close()
            return
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._others.tasks.add(self._task)
        self._task.add_done_callback(self._others.tasks.discard)

    async def _run(self) -> None:
        others = self._others
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connection,
                self._accepted,
                ssl=others.tls,
                ssl_handshake_timeout=others.limits.header_timeout_ns / SECOND,
                # Closing includes sending the rest of the response. The limit is the same as without TLS.
                ssl_shutdown_timeout=others.limits.send_timeout_ns / SECOND,
            )
        except OSError as error:
            others.on_handshake_failed(failure_of(error), self._client, failure_detail(error))
        finally:
            self._release()

    def _connection(self) -> TlsStream:
        return TlsStream(Connection(self._others), self._release)

    def _release(self) -> None:
        """Makes room for the connection, so that a completed handshake evicts no other client."""
        self._others.remove(self)

    def handle_timeout(self, now: float) -> None:
        """Does nothing, because the event loop enforces the timeout."""

    def close_when_idle(self) -> None:
        """Does nothing. The client has just connected and still expects a response to its first request."""

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()


def failure_of(error: BaseException) -> HandshakeFailure:
    if isinstance(error, ssl.SSLCertVerificationError):
        return HandshakeFailure.CLIENT_CERTIFICATE
    if isinstance(error, ssl.SSLError):
        return _failure_of_openssl(error.reason or "")
    # The event loop's error for a handshake that took too long has no error number.
    if isinstance(error, ConnectionAbortedError) and error.errno is None:
        return HandshakeFailure.TIMEOUT
    return HandshakeFailure.CLOSED


def failure_detail(error: BaseException) -> str:
    """Returns OpenSSL's reason for the failure; empty if it has none."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    return (error.reason or "").replace("_", " ").lower() if isinstance(error, ssl.SSLError) else ""


def _peer_address(accepted: socket.socket) -> str:
    try:
        return str(accepted.getpeername()[0])
    except (IndexError, OSError):
        return "unknown"


def _failure_of_openssl(reason: str) -> HandshakeFailure:
    """Maps the reason of an OpenSSL error."""
    if reason == "HTTP_REQUEST":
        return HandshakeFailure.PLAIN_HTTP
    if reason in ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "CERTIFICATE_VERIFY_FAILED"):
        return HandshakeFailure.CLIENT_CERTIFICATE
    if "_ALERT_" in reason and ("CERTIFICATE" in reason or reason.endswith("_CA")):
        return HandshakeFailure.REJECTED_BY_CLIENT
    if reason in ("UNSUPPORTED_PROTOCOL", "NO_SHARED_CIPHER", "VERSION_TOO_LOW", "NO_PROTOCOLS_AVAILABLE"):
        return HandshakeFailure.NO_COMMON_PROTOCOL
    return HandshakeFailure.INVALID
