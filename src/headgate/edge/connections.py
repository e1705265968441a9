"""Which connections does a listener have, and what do they share?

Their bounds, the exchanges under way, and the words that go before every answer. One sweep a few times a second ends
those in which something has taken too long.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from headgate.edge.client import Client, Headers
from headgate.edge.connection import Connection
from headgate.edge.options import EdgeLimits
from headgate.edge.request_head import Refused
from headgate.edge.tenant_shares import TenantShares
from headgate.model.units import TenantId
from headgate.ports.descriptors import is_scarce
from headgate.wire.replies import error_body
from headgate.wire.turn_budget import TurnBudget

log = logging.getLogger("headgate")

App = Callable[[Client], Awaitable[None]]
OnRefused = Callable[[str, Refused], None]
"""Given the id that the answer carries."""

_STATUS_LINES: Final = {each.value: b"HTTP/1.1 %d %b\r\n" % (each, each.phrase.encode()) for each in HTTPStatus}


class Connections:
    """All connections of one listener."""

    def __init__(self, app: App, limits: EdgeLimits, on_refused: OnRefused) -> None:
        self._app = app
        self.limits = limits
        self.budget = TurnBudget(lambda resume: asyncio.get_running_loop().call_soon(resume), time.perf_counter_ns)
        self.on_refused = on_refused
        """Told of what was refused before it became a request."""
        self.tasks: set[asyncio.Task[None]] = set()
        """The exchanges under way."""
        self._open: dict[Connection, TenantId | None] = {}
        """Open connections, each with the tenant that used it last; None if not used yet."""
        self._held = TenantShares()
        """Number of connections of each tenant."""
        self._unidentified: dict[Connection, None] = {}
        """Unauthenticated connections, oldest first."""
        self._dated = (0, b"")

    def __len__(self) -> int:
        return len(self._open)

    def __call__(self) -> Connection:
        """The protocol for a connection that was accepted."""
        return Connection(self)

    def add(self, connection: Connection, descriptor: int) -> bool:
        """Whether the connection may stay open; `descriptor` is that of its socket."""
        is_full = len(self._open) >= self.limits.connections_open_max or is_scarce(descriptor)
        if is_full and not self._unidentified:
            return False
        if is_full or len(self._unidentified) >= self.limits.unauthenticated_connections_max:
            # Close the oldest: a caller with a key sends it at once, an idle connection does not.
            oldest = next(iter(self._unidentified))
            self.remove(oldest)
            oldest.abort()
        self._open[connection] = self._unidentified[connection] = None
        return True

    def remove(self, connection: Connection) -> None:
        self._disown(connection)
        self._open.pop(connection, None)
        self._unidentified.pop(connection, None)

    def identified(self, connection: Connection, tenant: TenantId | None) -> bool:
        if connection not in self._open:
            return True  # The connection was closed in the meantime.
        if tenant is not None and tenant != self._open[connection]:
            self._disown(connection)
            free = self.limits.connections_open_max - self._held.total - 1
            if not self._held.has_room(tenant, 1, free=free):
                self._unidentified[connection] = None
                return False
            self._held.add(tenant, 1)
            self._open[connection] = tenant
        self._unidentified.pop(connection, None)
        return True

    def _disown(self, connection: Connection) -> None:
        if (tenant := self._open.get(connection)) is not None:
            self._held.add(tenant, -1)
            self._open[connection] = None

    def sweep(self, now: float) -> None:
        """Ends what has taken too long."""
        for connection in [each for each in self._open if each.due_at < now]:
            connection.end_overdue(now)

    @property
    def any_unheard(self) -> bool:
        """Whether any connected caller has not sent a request yet."""
        return any(each.unheard for each in self._open)

    def close_idle(self) -> None:
        """Lets go of the connections that wait for a request, and of each other one after its answer."""
        for connection in list(self._open):
            connection.close_when_idle()

    def abort(self) -> None:
        for connection in list(self._open):
            connection.abort()

    # For each of them

    def serve(self, client: Client, connection: Connection) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(client, connection))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _serve(self, client: Client, connection: Connection) -> None:
        try:
            await self._app(client)
        except Exception:
            # It is contained here: one request that meets a mistake of ours must not end those of all others.
            log.exception("this is a mistake in Headgate; the request that met it is cut off")
        finally:
            if not client.started and not client.left:
                message = "this gateway met a mistake of its own; try again, another one may answer"
                body = error_body(message=message, type="server_error", code="internal_error")
                client.reply(500, [(b"content-type", b"application/json")], body)
            elif not client.finished:
                # Only a cut connection says that what was sent is not all.
                connection.abort()

    def refusal(self, refused: Refused, client: Client | None) -> bytes:
        named = () if client is None else (value for name, value in client.always if name == b"x-request-id")
        request_id = next(iter(named), b"") or b"req_%b" % secrets.token_hex(12).encode()
        if client is None:
            # Where there is one, it is counted as one whose caller left.
            self.on_refused(request_id.decode(), refused)
        body = error_body(message=str(refused), type="invalid_request_error", code="invalid_request_error")
        headers = [
            (b"x-request-id", request_id),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            (b"x-should-retry", b"false"),
        ]
        return self.head(refused.status, headers) + body

    def head(self, status: int, headers: Headers) -> bytes:
        lines = [b"%b: %b\r\n" % pair for pair in headers]
        return b"".join([_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, self._date(), *lines, b"\r\n"])

    def _date(self) -> bytes:
        """The line that tells the time, made once a second."""
        now = int(time.time())
        if self._dated[0] != now:
            self._dated = (now, b"date: %b\r\n" % formatdate(now, usegmt=True).encode())
        return self._dated[1]
