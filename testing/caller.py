"""How does a test read an answer exactly as slowly as it wants to? A caller that talks to the door without a socket."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from headgate.edge.client import Client, Headers
from headgate.model.units import TenantId
from testing.gateway import CHAT


class Caller:
    """One request, as the connection would hand it to the door.

    It reads what it is sent until `stops_at` says so of what it has got; from then on it is blocked, as behind a full
    socket, until it is told to `read_on`.
    """

    def __init__(self, body: Mapping[str, Any], *, stops_at: "Callable[[Caller], bool]" = lambda _: False) -> None:
        content = json.dumps(body).encode()
        self.client = Client(self, method="POST", path=CHAT.encode(), headers={}, body_bytes_max=len(content))
        self.client.take_body(content)
        self.client.complete_body()
        self.heads: list[int] = []
        self.body = b""
        self.ends = 0
        self.blocked = False
        self.stopped = asyncio.Event()
        self._stops_at = stops_at

    def read_on(self) -> None:
        self._stops_at = lambda _: False
        self.blocked = False
        if self.client.on_unblocked is not None:
            self.client.on_unblocked()

    def leave(self) -> None:
        self.client.leave()

    @property
    def status(self) -> int:
        return self.heads[0]

    @property
    def complete(self) -> bool:
        return self.ends == 1

    # What the connection does

    def identified(self, _tenant: TenantId | None = None) -> bool:
        return True

    def ask_for_body(self) -> None:
        raise AssertionError("the body is here")

    def send_head(self, status: int, headers: Headers) -> None:
        self.heads.append(status)
        self._look()

    def send(self, data: bytes) -> None:
        self.body += data
        self._look()

    def send_end(self, data: bytes) -> None:
        self.body += data
        self.ends += 1

    def _look(self) -> None:
        if self._stops_at(self) and not self.blocked:
            self.blocked = True
            self.stopped.set()
            if self.client.on_blocked is not None:
                self.client.on_blocked()
