"""A listener's connections, with their shared limits, open exchanges and response heads.

A sweep runs a few times a second and ends connections that have timed out.
"""

import asyncio
import logging
import secrets
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from headgate.edge.client import Client, Headers
from headgate.edge.connection import Connection, OpenConnection
from headgate.edge.options import EdgeLimits
from headgate.edge.request_head import HttpRejection
from headgate.edge.tenant_shares import TenantShares
from headgate.edge.tls_handshake import HandshakeFailure
from headgate.model.units import TenantId
from headgate.ports.file_descriptors import is_scarce
from headgate.wire.anthropic_bodies import API, INVALID, OVERLOADED, REQUEST_ID_HEADER, is_messages, messages_error
from headgate.wire.openai_bodies import error_body
from headgate.wire.turn_budget import TurnBudget

log = logging.getLogger("headgate")

App = Callable[[Client], Awaitable[None]]
OnRejected = Callable[[str, HttpRejection], None]
"""Called for a rejected connection, with the request ID that the response contains."""
OnHandshakeFailed = Callable[[HandshakeFailure, str, str], None]
"""Called for a failed TLS handshake, with the client's IP address and OpenSSL's reason, which may be empty."""

_STATUS_LINES: Final = {each.value: b"HTTP/1.1 %d %b\r\n" % (each, each.phrase.encode()) for each in HTTPStatus}
_join_pair: Final = b": ".join
_END_OF_HEAD: Final = b"\r\n\r\n"


class Connections:
    """All connections of one listener."""

    def __init__(self, app: App, limits: EdgeLimits, on_rejected: OnRejected) -> None:
        self._app = app
        self.limits = limits
        self.budget = TurnBudget(lambda resume: asyncio.get_running_loop().call_soon(resume), time.perf_counter_ns)
        self.on_rejected = on_rejected
        """Called when received bytes are rejected before they become a request."""
        self.tasks: set[asyncio.Task[None]] = set()
        """Tasks of the open exchanges."""
        self.tls: ssl.SSLContext | None = None
        """Context for new connections; None without TLS. It can be replaced at any time."""
        self.handshake_failures: Counter[HandshakeFailure] = Counter()
        self.log_handshake_failure: OnHandshakeFailed = lambda _why, _client, _detail: None
        self._open: dict[OpenConnection, TenantId | None] = {}
        """Open connections, each with the tenant that last used it, or None if no tenant has used it yet."""
        self._tenant_connections = TenantShares()
        """Number of connections per tenant."""
        self._unauthenticated: dict[OpenConnection, None] = {}
        """Unauthenticated connections, oldest first."""
        self._date_line = (0, b"")

    def __len__(self) -> int:
        return len(self._open)

    def __call__(self) -> Connection:
        """Returns the protocol object for a new connection."""
        return Connection(self)

    def on_handshake_failed(self, why: HandshakeFailure, client: str, detail: str) -> None:
        self.handshake_failures[why] += 1
        self.log_handshake_failure(why, client, detail)

    def add(self, connection: OpenConnection, descriptor: int) -> bool:
        """Registers a connection by its socket's file descriptor. Returns False if there are too many connections."""
        is_full = len(self._open) >= self.limits.connections_open_max or is_scarce(descriptor)
        if is_full and not self._unauthenticated:
            return False
        if is_full or len(self._unauthenticated) >= self.limits.unauthenticated_connections_max:
            # Close the oldest connection, because a client that has a key sends it immediately.
            oldest = next(iter(self._unauthenticated))
            self.remove(oldest)
            oldest.abort()
        self._open[connection] = self._unauthenticated[connection] = None
        return True

    def remove(self, connection: OpenConnection) -> None:
        self._release_tenant(connection)
        self._open.pop(connection, None)
        self._unauthenticated.pop(connection, None)

    def mark_authenticated(self, connection: Connection, tenant: TenantId | None) -> bool:
        if connection not in self._open:
            return True  # The connection was closed in the meantime.
        if tenant is not None and tenant != self._open[connection]:
            self._release_tenant(connection)
            free = self.limits.connections_open_max - self._tenant_connections.total - 1
            if not self._tenant_connections.has_room(tenant, 1, free=free):
                self._unauthenticated[connection] = None
                return False
            self._tenant_connections.add(tenant, 1)
            self._open[connection] = tenant
        self._unauthenticated.pop(connection, None)
        return True

    def _release_tenant(self, connection: OpenConnection) -> None:
        if (tenant := self._open.get(connection)) is not None:
            self._tenant_connections.add(tenant, -1)
            self._open[connection] = None

    def sweep(self, now: float) -> None:
        """Ends connections that have timed out."""
        for connection in [each for each in self._open if each.timeout_at < now]:
            connection.handle_timeout(now)

    @property
    def any_unused(self) -> bool:
        """Whether any client has connected without sending a byte yet."""
        return any(each.is_unused for each in self._open)

    def close_idle(self) -> None:
        """Closes idle connections now, and the others after their current response."""
        for connection in list(self._open):
            connection.close_when_idle()

    def abort(self) -> None:
        for connection in list(self._open):
            connection.abort()

    # Called by each connection

    def serve(self, client: Client, connection: Connection) -> None:
        # A task with a name is cheaper than one whose name has to be formatted.
        loop = asyncio.get_running_loop()
        task = client.task = asyncio.Task(self._serve(client, connection), loop=loop, name="exchange")
        self.tasks.add(task)

    async def _serve(self, client: Client, connection: Connection) -> None:
        try:
            await self._app(client)
        except Exception:
            # A bug that affects one request must not end the others.
            log.exception("internal error: this is a bug in Headgate; the request is aborted")
        finally:
            # A callback of the task would take another turn of the event loop.
            if client.task is not None:
                self.tasks.discard(client.task)
                client.task = None
            if not client.started and not client.disconnected:
                client.reply(500, [(b"content-type", b"application/json")], _internal_error(client))
            elif not client.finished:
                # Only an aborted connection shows the client that the response is incomplete.
                connection.abort()

    def rejection_reply(self, refused: HttpRejection, client: Client | None, path: bytes) -> bytes:
        request_id = b"" if client is None else _request_id(client)
        request_id = request_id or b"req_%b" % secrets.token_hex(12).encode()
        if client is None:
            # If there is a client, the request is counted as a disconnect.
            self.on_rejected(request_id.decode(), refused)
        named: Headers = []
        if is_messages(path):
            body = messages_error(OVERLOADED if refused.status == 503 else INVALID, str(refused), request_id.decode())
            named.append((REQUEST_ID_HEADER, request_id))
        else:
            body = error_body(message=str(refused), type="invalid_request_error", code="invalid_request_error")
        headers = [
            (b"x-request-id", request_id),
            *named,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            (b"x-should-retry", b"false"),
        ]
        return self.head(refused.status, headers) + body

    def head(self, status: int, headers: Headers) -> bytes:
        line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        # `join` on each pair, called by `map`, is faster than any loop or format.
        return b"".join((line, self._date(), b"\r\n".join(map(_join_pair, headers)), _END_OF_HEAD))

    def _date(self) -> bytes:
        """Returns the `date` header line, rebuilt once a second."""
        now = int(time.time())
        if self._date_line[0] != now:
            self._date_line = (now, b"date: %b\r\n" % formatdate(now, usegmt=True).encode())
        return self._date_line[1]


def _request_id(client: Client) -> bytes:
    """Returns the request ID in the headers of the response. Empty if there is none yet."""
    return next((value for name, value in client.common_headers if name == b"x-request-id"), b"")


def _internal_error(client: Client) -> bytes:
    message = "internal error in this gateway; retry, another gateway may succeed"
    if is_messages(client.path):
        return messages_error(API, message, _request_id(client).decode())
    return error_body(message=message, type="server_error", code="internal_error")
