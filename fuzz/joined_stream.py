"""Fuzz target: a joined stream gives the same response of bounded size, however its reads are split."""

from fuzz.cuts import cut
from headgate.model.ticket import Api
from headgate.wire.stream_joiner import BrokenStream, JoinedBody, StreamJoiner

_BYTES_MAX = 512
_FRAME_BYTES_MAX = 16
"""Limit on added JSON names and brackets, in bytes per byte of the stream."""


def one_input(data: bytes) -> None:
    for api in (Api.CHAT, Api.COMPLETIONS):
        assert _outcome([data], api) == _outcome(cut(data), api)


def _outcome(pieces: list[bytes], api: Api) -> JoinedBody | str:
    joiner = StreamJoiner(api, assembled_bytes_max=_BYTES_MAX)
    for piece in pieces:
        if joiner.feed(piece):
            break
    try:
        whole = joiner.finish()
    except BrokenStream as broken:
        return str(broken)
    assert whole.status != 200 or len(whole.body) <= _BYTES_MAX + _FRAME_BYTES_MAX * sum(map(len, pieces))
    return whole
