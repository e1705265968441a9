"""What may an operator ask of this process?

A listener of its own, with a closed list of pages that only read. It shares nothing with the
data listener but the process, so that a flood at the door leaves it reachable. What changes anything has paths and
credentials of its own (`admin_api.py`), and is not there where nobody has such credentials.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from headgate.edge.admin_api import ADMIN_API, AdminApi
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
        explain: Callable[[str], tuple[bool, Callable[[], Mapping[str, object]]]],
    ) -> None:
        self._ready = ready
        self._metrics = metrics
        self._status = status
        self._explain = explain
        self.pages: Mapping[bytes, Callable[[], Awaitable[_Page]]] = {
            b"/health": self._health_page,
            b"/ready": self._ready_page,
            b"/metrics": self._metrics_page,
            b"/status": self._status_page,
        }
        self.pages_below: Mapping[bytes, Callable[[str], Awaitable[_Page]]] = {
            b"/explain/": self._explain_page,
        }
        """One for each name that may follow the path."""
        self.api: AdminApi | None = None
        """What changes anything; None where nobody may."""

    async def __call__(self, client: Client) -> None:
        if self.api is not None and client.path.startswith(ADMIN_API):
            await self.api(client)
            return
        found = self._find(client.path) if client.method in ("GET", "HEAD") else None
        if found is None:
            known = [*self.pages, *(path + b"REQUEST_ID" for path in self.pages_below)]
            client.reply(404, [_TEXT], b"GET one of: %b\n" % b", ".join(known))
            return
        status, kind, body = await found
        client.reply(status, [kind], body)

    def _find(self, path: bytes) -> Awaitable[_Page] | None:
        if (page := self.pages.get(path)) is not None:
            return page()
        above, slash, name = path.rpartition(b"/")
        if (page_below := self.pages_below.get(above + slash)) is not None and _NAME.fullmatch(name):
            return page_below(name.decode())
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

    async def _explain_page(self, request_id: str) -> _Page:
        known, tell = self._explain(request_id)
        # Who else was sent meanwhile is looked for among thousands.
        return (200 if known else 404), JSON, _json(await asyncio.to_thread(tell))


def _json(data: Mapping[str, object]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n"
