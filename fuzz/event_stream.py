"""Fuzz target: an engine's event stream gives the same result in any reads, with or without HTTP chunks."""

from fuzz.cuts import cut
from headgate.wire.sse import StreamScanner


def one_input(data: bytes) -> None:
    for keep_usage in (False, True):
        for event_bytes_max in (64, 1024 * 1024):
            whole = _outcome([data], keep_usage=keep_usage, event_bytes_max=event_bytes_max)
            for pieces in (cut(data), data.splitlines(keepends=True), _events(data)):
                assert whole == _outcome(pieces, keep_usage=keep_usage, event_bytes_max=event_bytes_max)


def _events(data: bytes) -> list[bytes]:
    *events, rest = data.split(b"\n\n")
    return [*(event + b"\n\n" for event in events), rest]


def _outcome(pieces: list[bytes], *, keep_usage: bool, event_bytes_max: int) -> tuple[object, ...]:
    scanner = StreamScanner(keep_usage_chunk=keep_usage, event_bytes_max=event_bytes_max)
    passed = b""
    for piece in pieces:
        in_chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
        passed += piece if scanner.passes_chunk(in_chunk) else scanner.feed(piece)
    assert passed == b"" or passed.endswith((b"\n\n", b"\n\r\n")), "what is passed on ends between two events"
    assert not (scanner.done and scanner.error), "a stream has one end"
    return passed, scanner.events, scanner.done, scanner.error, scanner.usage, scanner.overlong
