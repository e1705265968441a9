"""The fake engine's HTTP/1.1 server connection, with keep-alive and one request at a time."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Protocol, Self

BODY_BYTES_MAX = 64 * 1024 * 1024
_FLAGS: dict[str, object] = {"true": True, "false": False}
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 503: "Service Unavailable"}


@dataclass(eq=False, slots=True)
class Received:
    """One request as the engine received it, with its progress."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    connection: int
    """Number of the connection that carried the request."""
    client_certificate: int = 0
    """Serial number of the client's certificate. 0 if the client has none."""
    tokens_sent: int = 0
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by a test to let a hanging request continue."""
    hung: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the request hangs as scripted."""
    client_left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client disconnects before the response is complete."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the engine has finished the request, regardless of the result."""

    def remove_base_path(self, base_path: str) -> None:
        """Removes the base path from the path, or makes the path an unknown one if it is not below the base path."""
        below = self.path.startswith(f"{base_path}/")
        self.path = self.path.removeprefix(base_path) if below else f"/not-below-the-base-path{self.path}"

    @property
    def fields(self) -> dict[str, object]:
        """Fields of a JSON body or of a form, empty for any other body. Flags of a form are booleans."""
        if self.headers.get("content-type", "").startswith("multipart/form-data"):
            return {name: _FLAGS.get(text, text) for name, text in self.form.texts}
        try:
            return self.json
        except ValueError:
            return {}

    @property
    def form(self) -> "Form":
        boundary = self.headers["content-type"].removeprefix("multipart/form-data; boundary=").encode()
        before, *parts, after = (b"\r\n" + self.raw).split(b"\r\n--" + boundary)
        assert (before, after) == (b"", b"--\r\n"), "nothing comes before the first part or after the last one"
        return Form.of(parts)

    @property
    def json(self) -> dict[str, object]:
        return json.loads(self.raw)


@dataclass(frozen=True, slots=True)
class Form:
    """Fields of a form and the parts of the header and content of its file."""

    texts: list[tuple[str, str]]
    file_headers: str
    file: bytes

    @classmethod
    def of(cls, parts: list[bytes]) -> Self:
        texts: list[tuple[str, str]] = []
        files: list[tuple[str, bytes]] = []
        for part in parts:
            head, _, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
            if b"filename=" in head:
                files.append((head.decode(), content))
            else:
                name = head.decode().removeprefix('Content-Disposition: form-data; name="').removesuffix('"')
                texts.append((name, content.decode()))
        [(headers, file)] = files
        return cls(texts, headers, file)


class Owner(Protocol):
    """The server that owns the connections."""

    def opened(self, connection: "Connection") -> int:
        """Register a new connection and return its number."""
        ...

    def closed(self, connection: "Connection") -> None: ...

    def begin_answer(self, connection: "Connection", received: Received) -> asyncio.Task[None]:
        """Start responding to a request."""
        ...


class Connection(asyncio.Protocol):
    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._buffer = b""
        self._current: Received | None = None
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport
        self._number = 0
        self._client_certificate = 0
        self.extra_headers: tuple[tuple[str, str], ...] = ()
        """Additional headers of the next response."""

    @property
    def idle(self) -> bool:
        return self._current is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._client_certificate = int((transport.get_extra_info("peercert") or {}).get("serialNumber", "0"), 16)
        self._number = self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        assert len(self._buffer) <= BODY_BYTES_MAX, f"a test sent more than {BODY_BYTES_MAX} bytes to the fake engine"
        self._next()

    def eof_received(self) -> bool:
        self._client_disconnected()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._client_disconnected()
        self._writable.set()
        self._owner.closed(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def drained(self) -> None:
        await self._writable.wait()
        # A burst of tokens must not keep the event loop from noticing a disconnect.
        await asyncio.sleep(0)

    def _client_disconnected(self) -> None:
        if self._current is not None and not self._current.ended.is_set():
            self._current.client_left.set()
            assert self._task is not None
            self._task.cancel()
        self._current = None

    def _next(self) -> None:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if self._current is not None or not found:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        self._current = Received(method, path, headers, rest[:length], self._number, self._client_certificate)
        self._task = self._owner.begin_answer(self, self._current)

    def finished(self) -> None:
        """Handle the next request on this connection, unless the client asked to close the connection."""
        if self._is_last:
            self.close()
        self._current = None
        self._next()

    def answer(self, status: int, body: bytes, *, content_type: str = "application/json") -> None:
        self.head(status, content_type, length=len(body))
        self.write(body)

    def head(self, status: int, content_type: str, *, length: int | None) -> None:
        framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        if self._is_last:
            framing += "\r\nconnection: close"
        reason = _REASONS.get(status, "Status")
        extra = "".join(f"\r\n{name}: {value}" for name, value in self.extra_headers)
        head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: {content_type}{extra}\r\n{framing}\r\n\r\n"
        self.write(head.encode("latin-1"))

    @property
    def _is_last(self) -> bool:
        return self._current is not None and self._current.headers.get("connection") == "close"

    def chunk(self, data: bytes) -> None:
        self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def last_chunk(self) -> None:
        self.write(b"0\r\n\r\n")

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
