"""Joins the stream of an engine into a whole answer.

Like any answer that is not streamed, it begins when it is complete; until then the request can be retried elsewhere.
The `watch` receives its tokens as they arrive. If the caller disconnects, the engine's connection is closed at once.
Responses that are not streams, such as errors, are passed on unchanged.
"""

from collections.abc import Callable

from headgate.engines.at_hand import AtHandAnswer
from headgate.engines.connection import HttpAnswer
from headgate.model.ticket import Api
from headgate.ports.engine import Answer, EngineFault, GenerationWatch
from headgate.wire.joining import BrokenStream, Joined, Joiner
from headgate.wire.whole_shape import AS_STREAMED


async def joined(answer: HttpAnswer, api: Api, watch: GenerationWatch | None = None) -> Answer:
    """Reads the stream to its end and returns the joined answer. Raises `EngineFault` or `UnequalStream`."""
    if answer.status >= 300 or not answer.content_type.lower().startswith("text/event-stream"):
        return answer
    joiner = Joiner(api, answer.dialect.whole_shapes.get(api, AS_STREAMED))
    take = joiner.take if watch is None else _reporting(joiner, watch)
    try:
        await answer.pour(take)
        whole = joiner.conclude()
    except BrokenStream as broken:
        answer.close()
        raise EngineFault(str(broken)) from None
    except BaseException:
        answer.close()
        raise
    answer.let_end()
    return JoinedAnswer(answer, whole)


def _reporting(joiner: Joiner, watch: GenerationWatch) -> Callable[[bytes], bool]:
    def take(data: bytes) -> bool:
        ended = joiner.take(data)
        if joiner.events:
            watch.heard(joiner.events)
        return ended

    return take


class JoinedAnswer(AtHandAnswer):
    """A whole answer that is at hand."""

    __slots__ = ("_stream",)

    def __init__(self, stream: HttpAnswer, whole: Joined) -> None:
        super().__init__(whole.status, whole.body)
        self._stream = stream

    def blames_request(self, body: bytes) -> bool:
        return self._stream.dialect.blames_request(self.status, body)

    def close(self) -> None:
        self._stream.close()
