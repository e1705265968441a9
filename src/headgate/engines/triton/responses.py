"""Translates a Triton stream into OpenAI chunks.

Bytes are translated in the callback in which they arrive. Flow control, aborts and connection reuse work as they do for
any other response.
"""

from collections.abc import Callable

from headgate.ports.engine import FramedResponse
from headgate.wire.kserve.generate_stream import ChunkTranslator, TranslationContext


class TranslatedResponse:
    """Streamed response, translated from Triton's format."""

    __slots__ = (
        "_chunks",
        "_ended",
        "_stream",
        "body_headers",
        "content_type",
        "is_framed",
        "reports_progress",
        "secret",
        "status",
    )
    usage_estimated = False

    def __init__(self, stream: FramedResponse, setting: TranslationContext) -> None:
        self._stream = stream
        self._chunks = ChunkTranslator(setting)
        self._ended = False
        self.status = stream.status
        self.content_type = "text/event-stream; charset=utf-8"
        self.body_headers: tuple[tuple[bytes, bytes], ...] = ()
        self.is_framed = stream.is_framed
        self.reports_progress = False
        self.secret = stream.secret

    async def read(self) -> bytes:
        while not self._ended:
            data = await self._stream.read()
            self._ended = not data
            if passed := self._chunks.feed(data) if data else self._chunks.finish():
                return passed
        return b""

    def take_body(self) -> bytes | None:
        return None

    async def stream_to(self, sink: Callable[[bytes], bool], chunk_sink: Callable[[bytes], bool] | None = None) -> None:
        del chunk_sink
        enough = False

        def translate(data: bytes) -> bool:
            nonlocal enough
            passed = self._chunks.feed(data)
            enough = bool(passed) and sink(passed)
            return enough

        await self._stream.stream_to(translate)
        if not enough and (rest := self._chunks.finish()):
            sink(rest)

    def pause(self) -> None:
        self._stream.pause()

    def resume(self) -> None:
        self._stream.resume()

    def is_request_error(self, body: bytes) -> bool:
        return self._stream.is_request_error(body)

    def drain(self) -> None:
        self._stream.drain()

    def close(self) -> None:
        self._stream.close()
