"""Fuzz target: an engine's event stream gives the same result however its reads are split."""

from fuzz.cuts import cut
from headgate.wire.sse import StreamScanner


def one_input(data: bytes) -> None:
    for keep_usage in (False, True):
        for event_bytes_max in (64, 1024 * 1024):
            whole = _outcome([data], keep_usage=keep_usage, event_bytes_max=event_bytes_max)
            assert whole == _outcome(cut(data), keep_usage=keep_usage, event_bytes_max=event_bytes_max)


def _outcome(pieces: list[bytes], *, keep_usage: bool, event_bytes_max: int) -> tuple[object, ...]:
    scanner = StreamScanner(keep_usage_chunk=keep_usage, event_bytes_max=event_bytes_max)
    passed = b"".join([scanner.feed(piece) for piece in pieces])
    assert passed == b"" or passed.endswith((b"\n\n", b"\n\r\n")), "what is passed on ends between two events"
    assert not (scanner.done and scanner.error), "a stream has one end"
    return passed, scanner.events, scanner.done, scanner.error, scanner.usage, scanner.overlong
