"""What may an operator ask of this process?

A listener of its own, with a closed list of pages that only read. It shares nothing with the
data listener but the process, so that a flood at the door leaves it reachable.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from headgate.edge.client import Client
from headgate.edge.replies import JSON

_TEXT = (b"content-type", b"text/plain; charset=utf-8")
_Page = tuple[int, tuple[bytes, bytes], bytes]


class AdminApp:
    """The application behind the admin listener."""

    def __init__(
        self,
        *,
        ready: Callable[[], tuple[bool, str]],
        metrics: Callable[[], Callable[[], tuple[bytes, str]]],
        status: Callable[[], Mapping[str, object]],
    ) -> None:
        self._ready = ready
        self._metrics = metrics
        self._status = status
        self.pages: Mapping[bytes, Callable[[], Awaitable[_Page]]] = {
            b"/health": self._health_page,
            b"/ready": self._ready_page,
            b"/metrics": self._metrics_page,
            b"/status": self._status_page,
        }

    async def __call__(self, client: Client) -> None:
        page = self.pages.get(client.path)
        if page is None or client.method not in ("GET", "HEAD"):
            known = ", ".join(path.decode() for path in self.pages)
            client.reply(404, [_TEXT], f"GET one of: {known}\n".encode())
            return
        status, kind, body = await page()
        client.reply(status, [kind], body)

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
        body = msgspec.json.format(msgspec.json.encode(self._status()), indent=2)
        return 200, JSON, body + b"\n"
