"""How does a test read an answer exactly as slowly as it wants to? A caller that talks to the door without a socket."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.gateway import CHAT

Message = Mapping[str, Any]


class Caller:
    """One request, as the server would hand it to the door.

    It reads what it is sent until a message comes that `stops_at` names; that one waits until `reads` is set, as it
    would behind a full socket.
    """

    def __init__(self, body: Mapping[str, Any], *, stops_at: Callable[[Message], bool] = lambda _: False) -> None:
        self.scope = {"type": "http", "method": "POST", "raw_path": CHAT.encode(), "headers": []}
        self.got: list[Message] = []
        self.stopped = asyncio.Event()
        self.reads = asyncio.Event()
        self.left = asyncio.Event()
        self._body: bytes | None = json.dumps(body).encode()
        self._stops_at = stops_at

    async def receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._stops_at(message):
            self.stopped.set()
            await self.reads.wait()
        self.got.append(message)

    @property
    def status(self) -> int:
        return self.got[0]["status"]

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.got[1:])

    @property
    def complete(self) -> bool:
        return bool(self.got) and self.got[-1].get("more_body") is False
