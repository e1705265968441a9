"""Fuzz target: the usage in a response is the same however its reads are split, and never negative."""

from fuzz.cuts import cut
from headgate.model.usage import Usage
from headgate.wire.usage import OBJECT_BYTES_MAX, TAIL_BYTES_MAX, UsageFinder, read_usage


def one_input(data: bytes) -> None:
    _check(read_usage(data))
    whole, pieces = UsageFinder(), UsageFinder()
    whole.feed(data)
    for piece in cut(data):
        pieces.feed(piece)
        assert pieces.held_bytes <= OBJECT_BYTES_MAX + TAIL_BYTES_MAX + 1
    _check(whole.usage)
    assert whole.usage == pieces.usage


def _check(usage: Usage | None) -> None:
    if usage is not None:
        assert min(usage.prompt_tokens, usage.output_tokens, usage.cached_tokens) >= 0
