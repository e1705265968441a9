"""What may an operator ask of this process?

A listener of its own, with a closed list of pages that only read. It shares nothing with the
data listener but the process, so that a flood at the door leaves it reachable. What changes anything has paths and
credentials of its own (`admin_api.py`), and is not there where nobody has such credentials.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from headgate.edge.admin.api import ADMIN_API, AdminApi
from headgate.edge.admin.console import CONSOLE, AdminConsole
from headgate.edge.admin.hosts import AllowedHosts
from headgate.edge.admin.query import BadQuery, RequestQuery, read_local, read_query
from headgate.edge.client import Client
from headgate.edge.replies import JSON

_TEXT = (b"content-type", b"text/plain; charset=utf-8")
_NAME = re.compile(rb"[A-Za-z0-9_-]{1,128}")
"""What may stand below a path that has pages of many things. Nothing in it can be read in a second way."""
_Page = tuple[int, tuple[bytes, bytes], bytes]


class AdminApp:
    """The application behind the admin listener."""

    def __init__(
        self,
        *,
        ready: Callable[[], tuple[bool, str]],
        metrics: Callable[[], Callable[[], tuple[bytes, str]]],
        status: Callable[[], Mapping[str, object]],
        explain: Callable[[str, bool], Awaitable[tuple[int, Mapping[str, object]]]],
        requests: Callable[[RequestQuery], Awaitable[Mapping[str, object]]],
        verdict: Callable[[], Mapping[str, object]],
    ) -> None:
        """`explain` is told whether to ask this process alone, and gives a status and what it says."""
        self._ready = ready
        self._metrics = metrics
        self._status = status
        self._explain = explain
        self._requests = requests
        self._verdict = verdict
        self.pages: Mapping[bytes, Callable[[], Awaitable[_Page]]] = {
            b"/health": self._health_page,
            b"/ready": self._ready_page,
            b"/metrics": self._metrics_page,
            b"/status": self._status_page,
            b"/verdict": self._verdict_page,
        }
        self.pages_below: Mapping[bytes, Callable[[str, bytes], Awaitable[_Page]]] = {
            b"/explain/": self._explain_page,
        }
        """One for each name that may follow the path; they are given the query too."""
        self.pages_asked: Mapping[bytes, Callable[[bytes], Awaitable[_Page]]] = {
            b"/requests": self._requests_page,
        }
        """Pages that go by their query."""
        self.api: AdminApi | None = None
        """What changes anything; None where nobody may."""
        self.console: AdminConsole | None = None
        """The page for people; None where there is none."""
        self.hosts = AllowedHosts()

    async def __call__(self, client: Client) -> None:
        if (refusal := self.hosts.refusal(client.headers)) is not None:
            client.reply(421, [_TEXT], f"{refusal}\n".encode())
            return
        client.identified()
        if self.api is not None and client.path.startswith(ADMIN_API):
            await self.api(client)
            return
        reads = client.method in ("GET", "HEAD")
        if reads and self.console is not None and await self.console(client):
            return
        found = self._find(client.path, client.query) if reads else None
        if found is None:
            below = (path + b"REQUEST_ID" for path in self.pages_below)
            known = [CONSOLE, *self.pages, *self.pages_asked, *below]
            client.reply(404, [_TEXT], b"GET one of: %b\n" % b", ".join(known))
            return
        status, kind, body = await found
        client.reply(status, [kind], body)

    def _find(self, path: bytes, query: bytes) -> Awaitable[_Page] | None:
        if (page := self.pages.get(path)) is not None:
            return page()
        if (page_asked := self.pages_asked.get(path)) is not None:
            return page_asked(query)
        above, slash, name = path.rpartition(b"/")
        if (page_below := self.pages_below.get(above + slash)) is not None and _NAME.fullmatch(name):
            return page_below(name.decode(), query)
        return None

    async def _health_page(self) -> _Page:
        """Alive: the loop turns. It says nothing about load or engines, or a busy process would be killed for it."""
        return 200, _TEXT, b"alive\n"

    async def _ready_page(self) -> _Page:
        ready, why = self._ready()
        return (200 if ready else 503), _TEXT, f"{why}\n".encode()

    async def _metrics_page(self) -> _Page:
        # Rendering takes milliseconds; the streams do not wait for it.
        body, kind = await asyncio.to_thread(self._metrics())
        return 200, (b"content-type", kind.encode()), body

    async def _status_page(self) -> _Page:
        return 200, JSON, _json(self._status())

    async def _verdict_page(self) -> _Page:
        return 200, JSON, _json(self._verdict())

    async def _explain_page(self, request_id: str, query: bytes) -> _Page:
        try:
            local = read_local(query)
        except BadQuery as problem:
            return _refused(problem)
        status, told = await self._explain(request_id, local)
        return status, JSON, _json(told)

    async def _requests_page(self, query: bytes) -> _Page:
        try:
            asked = read_query(query)
        except BadQuery as problem:
            return _refused(problem)
        return 200, JSON, _json(await self._requests(asked))


def _refused(problem: BadQuery) -> _Page:
    return 400, JSON, _json({"error": str(problem)})


def _json(data: Mapping[str, object]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n"
