"""An in-process HTTP client that calls the request handler without a socket and reads at the pace a test chooses."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from headgate.edge.client import Client, Headers
from headgate.model.units import TenantId
from testing.gateway import CHAT


class InProcessClient:
    """One request, as the connection hands it to the request handler.

    The caller reads until `stops_at` returns true. It then blocks, as if the socket buffer were full, until
    `resume_reading` is called.
    """

    def __init__(
        self, body: Mapping[str, Any], *, stops_at: "Callable[[InProcessClient], bool]" = lambda _: False
    ) -> None:
        content = json.dumps(body).encode()
        self.client = Client(self, method="POST", path=CHAT.encode(), headers={}, body_bytes_max=len(content))
        self.client.add_body(content)
        self.client.complete_body()
        self.heads: list[int] = []
        self.body = b""
        self.chunks = 0
        """Number of chunks that were sent in their own framing."""
        self.ends = 0
        self.blocked = False
        self.stopped = asyncio.Event()
        self._stops_at = stops_at

    def resume_reading(self) -> None:
        self._stops_at = lambda _: False
        self.blocked = False
        if self.client.on_unblocked is not None:
            self.client.on_unblocked()

    def disconnect(self) -> None:
        self.client.mark_disconnected()

    @property
    def status(self) -> int:
        return self.heads[0]

    @property
    def complete(self) -> bool:
        return self.ends == 1

    # Connection interface

    def mark_authenticated(self, _tenant: TenantId | None = None) -> bool:
        return True

    def pause_body(self) -> None:
        raise AssertionError("the client has a known key")

    def resume_body(self) -> None:
        raise AssertionError("the client has a known key")

    def send_continue(self) -> None:
        raise AssertionError("the body has already been received")

    def send_head(self, status: int, headers: Headers) -> None:
        self.heads.append(status)
        self._look()

    def send(self, data: bytes) -> None:
        self.body += data
        self._look()

    def send_end(self, data: bytes) -> None:
        self.body += data
        self.ends += 1

    def chunk_writer(self) -> Callable[[bytes], None]:
        return self._send_chunk

    def _send_chunk(self, chunk: bytes) -> None:
        line, _, rest = chunk.partition(b"\r\n")
        assert int(line, 16) == len(rest) - 2
        self.chunks += 1
        self.send(rest[:-2])

    def _look(self) -> None:
        if self._stops_at(self) and not self.blocked:
            self.blocked = True
            self.stopped.set()
            if self.client.on_blocked is not None:
                self.client.on_blocked()
