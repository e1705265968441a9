"""Fuzz target: a joined stream gives the same response of bounded size, however its reads are split."""

from fuzz.cuts import cut
from headgate.model.ticket import Api
from headgate.wire.joining import BrokenStream, Joined, Joiner

_BYTES_MAX = 512
_FRAME_BYTES_MAX = 16
"""Limit on added JSON names and brackets, in bytes per byte of the stream."""


def one_input(data: bytes) -> None:
    for api in (Api.CHAT, Api.COMPLETIONS):
        assert _outcome([data], api) == _outcome(cut(data), api)


def _outcome(pieces: list[bytes], api: Api) -> Joined | str:
    joiner = Joiner(api, assembled_bytes_max=_BYTES_MAX)
    for piece in pieces:
        if joiner.take(piece):
            break
    try:
        whole = joiner.conclude()
    except BrokenStream as broken:
        return str(broken)
    assert whole.status != 200 or len(whole.body) <= _BYTES_MAX + _FRAME_BYTES_MAX * sum(map(len, pieces))
    return whole
