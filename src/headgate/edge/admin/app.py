"""Application behind the admin listener: status pages of this process.

The admin listener has its own socket, so that it stays reachable when the data listener is overloaded. It serves a
fixed list of read-only pages, including the documentation and runbooks (`/docs/`). Changes go through the
administration API (`api.py`), which has its own paths and keys and exists only if operator keys are configured.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from headgate.edge.admin.allowed_hosts import AllowedHosts
from headgate.edge.admin.api import BODY_BYTES_MAX, AdminApi
from headgate.edge.admin.console import CONSOLE, EVENTS, AdminConsole
from headgate.edge.admin.login import LOGIN, LOGIN_PATHS, ConsoleLogin
from headgate.edge.admin.operator_auth import AdminRejection, OperatorAuth
from headgate.edge.admin.recorded_reads import record_read
from headgate.edge.admin.request_query import BadQuery, RequestQuery, read_local, read_query
from headgate.edge.admin.route_permissions import ADMIN_API, RECORDED_PAGES, page_permission
from headgate.edge.client import Client
from headgate.edge.error_replies import JSON_HEADER
from headgate.edge.pages.served import DOCS_PAGES, docs_pages
from headgate.ports.admin_roles import Operator, Permission
from headgate.ports.read_audit import ReadAudit

_TEXT = (b"content-type", b"text/plain; charset=utf-8")
_NAME = re.compile(rb"[A-Za-z0-9_-]{1,128}")
"""Names allowed as the last part of a path. They contain no characters that need decoding."""
ANONYMOUS: Final = Operator("", frozenset())
"""Operator for pages that require no authentication."""
MEMBER: Final = Operator("gateway of the cell", frozenset({Permission.READ}))


class _Page(NamedTuple):
    status: int
    kind: tuple[bytes, bytes]
    body: bytes
    tenant: str = ""
    """Tenant that the page is limited to. Empty if it is not limited."""
    target: str = ""
    """ID of the request that the page describes."""


class AdminApp:
    """Application behind the admin listener."""

    def __init__(
        self,
        *,
        ready: Callable[[], tuple[bool, str]],
        metrics: Callable[[], Callable[[], tuple[bytes, str]]],
        status: Callable[[], Mapping[str, object]],
        explain: Callable[[str, bool], Awaitable[tuple[int, Mapping[str, object]]]],
        requests: Callable[[RequestQuery], Awaitable[Mapping[str, object]]],
        verdict: Callable[[], Mapping[str, object]],
        reads: ReadAudit,
    ) -> None:
        """`explain` takes a request ID and a flag to query only this process, and returns an HTTP status and body.

        `reads` records reads of tenants' data.
        """
        self._ready = ready
        self._metrics = metrics
        self._status = status
        self._explain = explain
        self._requests = requests
        self._verdict = verdict
        self._reads = reads
        self.pages: Mapping[bytes, Callable[[], Awaitable[_Page]]] = {
            b"/health": self._health_page,
            b"/ready": self._ready_page,
            b"/metrics": self._metrics_page,
            b"/status": self._status_page,
            b"/verdict": self._verdict_page,
        }
        self.pages_by_name: Mapping[bytes, Callable[[str, bytes], Awaitable[_Page]]] = {
            b"/explain/": self._explain_page,
        }
        """Pages whose path ends in a name. They receive the name and the query string."""
        self.pages_with_query: Mapping[bytes, Callable[[bytes], Awaitable[_Page]]] = {
            b"/requests": self._requests_page,
        }
        """Pages that take query parameters."""
        self.api: AdminApi | None = None
        """Administration API. None if no operator can authenticate."""
        self.console: AdminConsole | None = None
        """Web console. None if it is disabled."""
        self.auth: OperatorAuth | None = None
        """Operator authentication. None until the configuration has been applied."""
        self.login: ConsoleLogin | None = None
        """Browser login. If None, the pages require no authentication."""
        self.docs = docs_pages()
        self.hosts = AllowedHosts()

    async def __call__(self, client: Client) -> None:
        if (refusal := self.hosts.rejection(client.headers)) is not None:
            client.reply(421, [_TEXT], f"{refusal}\n".encode())
            return
        client.mark_authenticated()
        # Nothing else limits the bytes that arrive before the operator is known, or with a request for a page.
        client.body_bytes_max = BODY_BYTES_MAX
        if self.login is not None and client.path in LOGIN_PATHS:
            await self.login(client)
            return
        if self.api is not None and client.path.startswith(ADMIN_API):
            await self.api(client)
            return
        operator = ANONYMOUS
        if self.login is not None and (permission := page_permission(client.path)) is not None:
            try:
                operator = await self._authenticate(client, permission, self.login)
            except AdminRejection as rejected:
                _reject(client, rejected)
                return
        await self._serve_page(client, operator)

    async def _authenticate(self, client: Client, permission: Permission, login: ConsoleLogin) -> Operator:
        if login.is_member(client):
            return MEMBER
        assert self.auth is not None
        operator = await self.auth.operator(client)
        if permission not in operator.permissions:
            await self._record(client, operator, 403)
            message = f'operator "{operator.name}" lacks the permission "{permission}"'
            raise AdminRejection(403, "permission_denied", message)
        return operator

    async def _serve_console(self, client: Client, console: AdminConsole, operator: Operator) -> bool:
        event, lifetime_s = b"", None
        if self.login is not None and client.path == EVENTS and (session := self.login.session(client)) is not None:
            about = msgspec.json.encode({"name": operator.name, "csrf": session.csrf})
            event = b"event: session\ndata: " + about + b"\n\n"
        if operator.expires_at_s < float("inf"):
            lifetime_s = max(0.0, operator.expires_at_s - time.time())
        return await console(client, session_event=event, lifetime_s=lifetime_s)

    async def _serve_page(self, client: Client, operator: Operator) -> None:
        reads = client.method in ("GET", "HEAD")
        if reads and self.console is not None:
            if client.path == EVENTS and not await self._recorded(client, operator, 200):
                return
            if await self._serve_console(client, self.console, operator):
                return
        if reads and (docs := self.docs.get(client.path)) is not None:
            docs.send(client)
            return
        found = self._find(client.path, client.query) if reads else None
        if found is None:
            below = (path + b"REQUEST_ID" for path in self.pages_by_name)
            known = [CONSOLE, f"{DOCS_PAGES}/".encode(), *self.pages, *self.pages_with_query, *below]
            client.reply(404, [_TEXT], b"unknown path; GET one of: %b\n" % b", ".join(known))
            return
        page = await found
        if await self._recorded(client, operator, page.status, page.tenant, page.target):
            client.reply(page.status, [page.kind], page.body)

    async def _recorded(
        self, client: Client, operator: Operator, status: int, tenant: str = "", target: str = ""
    ) -> bool:
        """Records a read of tenants' data. If that is not possible, rejects the request and returns False."""
        try:
            await self._record(client, operator, status, tenant, target)
        except AdminRejection as rejected:
            _reject(client, rejected)
            return False
        return True

    async def _record(
        self, client: Client, operator: Operator, status: int, tenant: str = "", target: str = ""
    ) -> None:
        if client.path.startswith(RECORDED_PAGES):
            await record_read(self._reads, client, operator, status=status, tenant=tenant, target=target)

    def _find(self, path: bytes, query: bytes) -> Awaitable[_Page] | None:
        if (page := self.pages.get(path)) is not None:
            return page()
        if (page_asked := self.pages_with_query.get(path)) is not None:
            return page_asked(query)
        above, slash, name = path.rpartition(b"/")
        if (page_below := self.pages_by_name.get(above + slash)) is not None and _NAME.fullmatch(name):
            return page_below(name.decode(), query)
        return None

    async def _health_page(self) -> _Page:
        """Reports that the event loop is running.

        Ignores load and engine state, so that a busy process is not killed.
        """
        return _Page(200, _TEXT, b"alive\n")

    async def _ready_page(self) -> _Page:
        ready, why = self._ready()
        return _Page(200 if ready else 503, _TEXT, f"{why}\n".encode())

    async def _metrics_page(self) -> _Page:
        # Rendering takes milliseconds. In a thread, it does not delay streams.
        body, kind = await asyncio.to_thread(self._metrics())
        return _Page(200, (b"content-type", kind.encode()), body)

    async def _status_page(self) -> _Page:
        return _Page(200, JSON_HEADER, _json(self._status()))

    async def _verdict_page(self) -> _Page:
        return _Page(200, JSON_HEADER, _json(self._verdict()))

    async def _explain_page(self, request_id: str, query: bytes) -> _Page:
        try:
            local = read_local(query)
        except BadQuery as problem:
            return _bad_query_page(problem)
        status, told = await self._explain(request_id, local)
        tenant = told.get("tenant")
        return _Page(status, JSON_HEADER, _json(told), tenant if isinstance(tenant, str) else "", request_id)

    async def _requests_page(self, query: bytes) -> _Page:
        try:
            asked = read_query(query)
        except BadQuery as problem:
            return _bad_query_page(problem)
        return _Page(200, JSON_HEADER, _json(await self._requests(asked)), asked.tenant or "")


def _reject(client: Client, rejected: AdminRejection) -> None:
    """Rejects a request for a page. A browser without a session is sent to the login."""
    if rejected.status == 401 and client.method == "GET" and b"text/html" in client.headers.get(b"accept", b""):
        client.reply(303, [_TEXT, (b"location", LOGIN), (b"cache-control", b"no-store")], b"log in at /login\n")
        return
    more = [(b"www-authenticate", b"Bearer")] if rejected.status == 401 else []
    headers = [JSON_HEADER, (b"cache-control", b"no-store"), *more, *rejected.headers]
    client.reply(rejected.status, headers, _json({"error": rejected.message}))


def _bad_query_page(problem: BadQuery) -> _Page:
    return _Page(400, JSON_HEADER, _json({"error": str(problem)}))


def _json(data: Mapping[str, object]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n"
