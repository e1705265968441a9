"""Fuzz target: a /v1/messages stream gives the same result however its reads are split."""

from fuzz.cuts import cut
from headgate.wire.messages_scanner import MessagesScanner


def one_input(data: bytes) -> None:
    for event_bytes_max in (64, 1024 * 1024):
        whole = _outcome([data], event_bytes_max=event_bytes_max)
        assert whole == _outcome(cut(data), event_bytes_max=event_bytes_max)


def _outcome(pieces: list[bytes], *, event_bytes_max: int) -> tuple[object, ...]:
    scanner = MessagesScanner(event_bytes_max=event_bytes_max)
    passed = b"".join([scanner.feed(piece) for piece in pieces])
    assert passed == b"" or passed.endswith((b"\n\n", b"\n\r\n")), "what is passed on ends between two events"
    assert not (scanner.done and scanner.error), "a stream has one end"
    assert scanner.events or scanner.done or not passed, "nothing is forwarded before the first delta"
    return passed, scanner.events, scanner.done, scanner.error, scanner.usage, scanner.overlong
