"""How does a stream of Triton reach a relay that reads OpenAI's chunks?

What comes is translated the moment it comes, inside the same callback, and the connection behind it is paced, cut and
kept as any other.
"""

from collections.abc import Callable

from headgate.ports.engine import FramedAnswer
from headgate.wire.kserve.events import ChunkTranslator, Setting


class TranslatedAnswer:
    """An answer whose head has come, in other words than the engine's."""

    __slots__ = (
        "_chunks",
        "_ended",
        "_stream",
        "content_type",
        "is_framed",
        "kept_headers",
        "reports_progress",
        "status",
    )
    usage_estimated = False

    def __init__(self, stream: FramedAnswer, setting: Setting) -> None:
        self._stream = stream
        self._chunks = ChunkTranslator(setting)
        self._ended = False
        self.status = stream.status
        self.content_type = "text/event-stream; charset=utf-8"
        self.kept_headers: tuple[tuple[bytes, bytes], ...] = ()
        self.is_framed = stream.is_framed
        self.reports_progress = False

    async def read(self) -> bytes:
        while not self._ended:
            data = await self._stream.read()
            self._ended = not data
            if passed := self._chunks.feed(data) if data else self._chunks.conclude():
                return passed
        return b""

    async def pour(self, take: Callable[[bytes], bool]) -> None:
        enough = False

        def translate(data: bytes) -> bool:
            nonlocal enough
            passed = self._chunks.feed(data)
            enough = bool(passed) and take(passed)
            return enough

        await self._stream.pour(translate)
        if not enough and (rest := self._chunks.conclude()):
            take(rest)

    def pause(self) -> None:
        self._stream.pause()

    def resume(self) -> None:
        self._stream.resume()

    def blames_request(self, body: bytes) -> bool:
        return self._stream.blames_request(body)

    def let_end(self) -> None:
        self._stream.let_end()

    def close(self) -> None:
        self._stream.close()
