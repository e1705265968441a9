"""How does a caller get a whole answer from an engine that is better asked for a stream?

Like any answer that is not streamed, this one begins when it is known to the end: until then an attempt can be made
elsewhere. The `watch` is told of its tokens as they come. A caller that gives up waiting has the engine's connection
cut at once. What the engine answers without a stream, as its errors, passes as it is.
"""

from collections.abc import Callable

from headgate.engines.at_hand import AtHandAnswer
from headgate.engines.connection import HttpAnswer
from headgate.model.ticket import Api
from headgate.ports.engine import Answer, EngineFault, GenerationWatch
from headgate.wire.joining import BrokenStream, Joined, Joiner
from headgate.wire.whole_shape import AS_STREAMED


async def joined(answer: HttpAnswer, api: Api, watch: GenerationWatch | None = None) -> Answer:
    """The answer that the stream adds up to, once it has ended. Raises `EngineFault` or `UnequalStream`."""
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
