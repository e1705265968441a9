"""Response to one attempt: its timing, result and usage.

httptools calls `LoadTestResponse` methods for each part of the HTTP message, and the connection records the time of
each read. The stream scanner in `wire` detects `[DONE]`, errors and usage. The first token is the first event with
text, because engines start a stream with an event that contains only the role, long before they generate anything. The
text is not kept.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Final

import msgspec

from headgate.loadtest.answer_text import ANSWER_BYTES_MAX
from headgate.model.ticket import Api
from headgate.model.usage import Usage
from headgate.wire.responses_scanner import scanner_for
from headgate.wire.sse import StreamScanner
from headgate.wire.usage import UsageFinder

ERROR_BYTES_MAX: Final = 16 * 1024
"""Maximum bytes of an error body that are kept in order to find its code."""
HEADERS_MAX: Final = 200
CODE_CHARS_MAX: Final = 64

_TEXT: Final = re.compile(
    rb'"(?:content|reasoning_content|reasoning|text|refusal)"\s*:\s*"[^"]|"tool_calls"\s*:\s*\[\s*\{'
)
_DELTA: Final = re.compile(rb'"delta"\s*:\s*"[^"]')
"""Text in an event of the Responses API, whose last events repeat the whole text."""
_NO_HEADERS: Final[dict[bytes, bytes]] = {}


class _Error(msgspec.Struct):
    code: str | int | None = None
    type: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error


_ERROR: Final = msgspec.json.Decoder(_ErrorBody)


class LoadTestResponse:
    """Response to one attempt, as far as it has arrived."""

    __slots__ = (
        "_api",
        "_buffer",
        "_finder",
        "_keep_body",
        "_on_first_token",
        "_scanner",
        "body",
        "connection_error",
        "end_ns",
        "ended",
        "first_token_ns",
        "headers",
        "is_complete",
        "now_ns",
        "status",
        "text_events",
    )

    def __init__(
        self,
        ended: asyncio.Future[None],
        on_first_token: Callable[[], None],
        *,
        api: Api = Api.CHAT,
        keep_body: bool = False,
    ) -> None:
        self._api = api
        self._keep_body = keep_body
        self.body = bytearray()
        """Body of the response, if it is kept."""
        self.now_ns = 0
        """Time of the current read, in nanoseconds since the start of the run."""
        self.status: int | None = None
        self.headers = _NO_HEADERS
        self.first_token_ns: int | None = None
        self.end_ns: int | None = None
        """Time at which the response was complete: when `[DONE]` arrived or, failing that, the last byte."""
        self.text_events = 0
        """Number of events with text. Used as the output token count if the server does not report usage."""
        self.is_complete = False
        """Whether the HTTP message is complete."""
        self.connection_error: str | None = None
        """Code of the connection error that truncated the message. None if there was no error."""
        self.ended = ended
        self._on_first_token = on_first_token
        self._scanner: StreamScanner | None = None
        self._finder: UsageFinder | None = None
        self._buffer = b""

    # Called by the connection and its parser

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self.status, self.headers = status, headers
        if status == 200 and headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            self._scanner = scanner_for(self._api, keep_usage_chunk=False)
        elif status == 200:
            self._finder = UsageFinder()

    def on_body(self, data: bytes) -> None:
        if self._keep_body and len(self.body) < ANSWER_BYTES_MAX:
            self.body += data
        if self._scanner is not None:
            self._read_events(self._scanner, data)
        elif self._finder is not None:
            self._finder.feed(data)
        elif len(self._buffer) < ERROR_BYTES_MAX:
            self._buffer += data[:ERROR_BYTES_MAX]

    def _read_events(self, scanner: StreamScanner, data: bytes) -> None:
        if self.end_ns is not None:  # Bytes after the end are not part of the response.
            return
        texts = len((_DELTA if self._api is Api.RESPONSES else _TEXT).findall(scanner.feed(data)))
        self.text_events += texts
        if texts and self.first_token_ns is None:
            self.first_token_ns = self.now_ns
            self._on_first_token()
        if scanner.done or scanner.error is not None:
            self.end_ns = self.now_ns
        elif data.endswith(b"\n\n"):
            self._buffer = b""
            return
        # Keep incomplete events, because an error event may arrive in pieces.
        self._buffer = (self._buffer + data)[-ERROR_BYTES_MAX:]

    def end(self, *, whole: bool, lost: str | None = None) -> None:
        if self.ended.done():
            return
        self.is_complete, self.connection_error = whole, lost
        if self.end_ns is None:
            self.end_ns = self.now_ns
        self.ended.set_result(None)

    # The result

    @property
    def completed(self) -> bool:
        if self._scanner is not None:
            return self._scanner.done
        return self.status == 200 and self.is_complete

    @property
    def usage(self) -> Usage | None:
        source = self._scanner or self._finder
        return None if source is None else source.usage

    @property
    def code(self) -> str:
        """Error code from the server, or Headgate's own code if there is none. Empty if the response is complete."""
        if self.completed:
            return ""
        if self.status is not None and self.status != 200:
            return _error_code(self._buffer) or f"http_{self.status}"
        if self._scanner is None or self.status is None:
            return self.connection_error or "connection_lost"
        if self._scanner.error is not None:
            return self._event_code() or "error_event"
        if self._scanner.overlong:
            return "event_too_long"
        return "no_done" if self.is_complete else self.connection_error or "connection_lost"

    def _event_code(self) -> str:
        for line in self._buffer.split(b"\n"):
            if line.startswith(b"data:") and (code := _error_code(line[5:])):
                return code
        return ""


def _error_code(body: bytes) -> str:
    try:
        error = _ERROR.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return str(error.code or error.type or "")[:CODE_CHARS_MAX]
