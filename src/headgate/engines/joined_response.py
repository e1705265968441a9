"""Joins an engine's stream into a non-streaming response.

The response does not begin until the stream is complete, so the request can be retried elsewhere until then. The
`watch` is told about tokens as they arrive. If the caller disconnects, the engine's connection is closed immediately.
Responses that are not streams, such as errors, are passed on unchanged.
"""

from collections.abc import Callable

from headgate.engines.buffered_response import BufferedResponse
from headgate.engines.http_response import HttpResponse
from headgate.model.ticket import Api
from headgate.ports.engine import EngineFault, EngineResponse, GenerationWatch
from headgate.wire.redaction import redacted_body
from headgate.wire.response_shape import AS_STREAMED
from headgate.wire.stream_joiner import BrokenStream, JoinedBody, StreamJoiner


async def join_stream(answer: HttpResponse, api: Api, watch: GenerationWatch | None = None) -> EngineResponse:
    """Reads the stream to its end and returns the joined response. Raises `EngineFault` or `StreamDiffers`."""
    if answer.status >= 300 or not answer.content_type.lower().startswith("text/event-stream"):
        return answer
    joiner = StreamJoiner(api, answer.dialect.response_shapes.get(api, AS_STREAMED))
    take = joiner.feed if watch is None else _with_progress(joiner, watch)
    try:
        await answer.stream_to(take)
        whole = joiner.finish()
    except BrokenStream as broken:
        answer.close()
        raise EngineFault(str(broken)) from None
    except BaseException:
        answer.close()
        raise
    answer.drain()
    return JoinedResponse(answer, whole)


def _with_progress(joiner: StreamJoiner, watch: GenerationWatch) -> Callable[[bytes], bool]:
    def take(data: bytes) -> bool:
        ended = joiner.feed(data)
        if joiner.events:
            watch.record_progress(joiner.events)
        return ended

    return take


class JoinedResponse(BufferedResponse):
    """Complete response that was joined from a stream."""

    __slots__ = ("_stream",)

    def __init__(self, stream: HttpResponse, whole: JoinedBody) -> None:
        secret = stream.secret if whole.status >= 300 else ""
        super().__init__(whole.status, redacted_body(whole.body, secret))
        self._stream = stream

    def is_request_error(self, body: bytes) -> bool:
        return self._stream.dialect.is_request_error(self.status, body)

    def close(self) -> None:
        self._stream.close()
