"""What does the server answer, and when?

One `Answer` follows the bytes of one try: httptools calls it for each part of the HTTP message, the connection tells it
the moment of each read, and the scanner of `wire` looks for `[DONE]`, errors and usage. The first token is the first
event with text in it: engines open a stream with an event that names only the role, long before they have anything to
say. An answer's text is not kept.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Final

import msgspec

from headgate.model.usage import Usage
from headgate.wire.sse import StreamScanner
from headgate.wire.usage import UsageFinder

ERROR_BYTES_MAX: Final = 16 * 1024
"""How much of an error is kept to find its code."""
HEADERS_MAX: Final = 200
CODE_CHARS_MAX: Final = 64

_TEXT: Final = re.compile(
    rb'"(?:content|reasoning_content|reasoning|text|refusal)"\s*:\s*"[^"]|"tool_calls"\s*:\s*\[\s*\{'
)
_NO_HEADERS: Final[dict[bytes, bytes]] = {}


class _Error(msgspec.Struct):
    code: str | int | None = None
    type: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error


_ERROR: Final = msgspec.json.Decoder(_ErrorBody)


class Answer:
    """The answer to one try, as far as it has come."""

    __slots__ = (
        "_finder",
        "_held",
        "_on_first_token",
        "_scanner",
        "end_ns",
        "ended",
        "first_token_ns",
        "headers",
        "lost",
        "now_ns",
        "status",
        "texts",
        "whole",
    )

    def __init__(self, ended: asyncio.Future[None], on_first_token: Callable[[], None]) -> None:
        self.now_ns = 0
        """When the bytes at hand were read."""
        self.status: int | None = None
        self.headers = _NO_HEADERS
        self.first_token_ns: int | None = None
        self.end_ns: int | None = None
        """When the answer was whole for its reader: at [DONE], else at the last byte."""
        self.texts = 0
        """Events with text: the tokens of the answer where the server does not tell them."""
        self.whole = False
        """Whether the HTTP message has come to its own end."""
        self.lost: str | None = None
        """Why the connection gave no whole message: a code."""
        self.ended = ended
        self._on_first_token = on_first_token
        self._scanner: StreamScanner | None = None
        self._finder: UsageFinder | None = None
        self._held = b""

    # -- called by the connection and its parser

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self.status, self.headers = status, headers
        if status == 200 and headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            self._scanner = StreamScanner(keep_usage_chunk=False)
        elif status == 200:
            self._finder = UsageFinder()

    def body(self, data: bytes) -> None:
        if self._scanner is not None:
            self._read_events(self._scanner, data)
        elif self._finder is not None:
            self._finder.feed(data)
        elif len(self._held) < ERROR_BYTES_MAX:
            self._held += data[:ERROR_BYTES_MAX]

    def _read_events(self, scanner: StreamScanner, data: bytes) -> None:
        if self.end_ns is not None:  # Nothing after the end is part of the answer.
            return
        texts = len(_TEXT.findall(scanner.feed(data)))
        self.texts += texts
        if texts and self.first_token_ns is None:
            self.first_token_ns = self.now_ns
            self._on_first_token()
        if scanner.done or scanner.error is not None:
            self.end_ns = self.now_ns
        elif data.endswith(b"\n\n"):
            self._held = b""
            return
        # An event may come in pieces, and an error is told in one.
        self._held = (self._held + data)[-ERROR_BYTES_MAX:]

    def end(self, *, whole: bool, lost: str | None = None) -> None:
        if self.ended.done():
            return
        self.whole, self.lost = whole, lost
        if self.end_ns is None:
            self.end_ns = self.now_ns
        self.ended.set_result(None)

    # -- what it came to

    @property
    def completed(self) -> bool:
        if self._scanner is not None:
            return self._scanner.done
        return self.status == 200 and self.whole

    @property
    def usage(self) -> Usage | None:
        source = self._scanner or self._finder
        return None if source is None else source.usage

    @property
    def code(self) -> str:
        """Empty if all is well, the server's error code if it told one, else a word of ours."""
        if self.completed:
            return ""
        if self.status is not None and self.status != 200:
            return _error_code(self._held) or f"http_{self.status}"
        if self._scanner is None or self.status is None:
            return self.lost or "connection_lost"
        if self._scanner.error is not None:
            return self._event_code() or "error_event"
        if self._scanner.overlong:
            return "event_too_long"
        return "no_done" if self.whole else self.lost or "connection_lost"

    def _event_code(self) -> str:
        for line in self._held.split(b"\n"):
            if line.startswith(b"data:") and (code := _error_code(line[5:])):
                return code
        return ""


def _error_code(body: bytes) -> str:
    try:
        error = _ERROR.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return str(error.code or error.type or "")[:CODE_CHARS_MAX]
