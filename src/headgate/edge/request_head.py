"""The head of a request: its bytes before the parser, and its headers after it.

Heads that could be understood in more than one way are rejected, since a proxy before us may have understood them
otherwise (request smuggling).
"""

from typing import Final

from headgate.edge.options import EdgeLimits

# Java's HTTP client offers HTTP/2 with every request. The parser would take that for the end of HTTP and lose the body.
_UPGRADE: Final = b"\nupgrade:"
_UPGRADE_RENAMED: Final = b"x-upgrade-passed-over:"
_END_OF_HEAD: Final = b"\r\n\r\n"
_ONCE: Final = frozenset({b"host", b"authorization", b"content-length", b"transfer-encoding"})
"""Headers of which a second one makes it a matter of opinion what was asked."""


class Refused(Exception):
    """The bytes are not a request that could be taken; the connection ends with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HeadBytes:
    """Counts the bytes of a head and renames its upgrade header, wherever the reads divide it."""

    __slots__ = ("_held", "_last", "count")

    def __init__(self) -> None:
        self.count = 0
        """Bytes of a head that has not ended yet."""
        self._last: bytes = b""
        """The last bytes of the head that were parsed."""
        self._held: bytes = b""
        """Bytes that are not parsed yet, since they may be the beginning of an upgrade header."""

    def clear(self) -> None:
        self.count = 0
        self._last = self._held = b""

    def take(self, data: bytes, limits: EdgeLimits) -> tuple[bytes, int]:
        """The bytes to parse, and how many of them follow the end of the head. Raises `Refused`."""
        before = self._last
        seen = before + self._held + data
        end = seen.find(_END_OF_HEAD)
        head, rest = (seen, b"") if end < 0 else (seen[: end + 4], seen[end + 4 :])
        self.count += len(head) - len(before) - len(self._held)
        self.check(limits)
        held_bytes = _upgrade_begun(head)
        self._held = head[len(head) - held_bytes :]
        head = head[: len(head) - held_bytes]
        self._last = head[-3:]
        return _without_upgrades(head)[len(before) :] + rest, len(rest)

    def check(self, limits: EdgeLimits) -> None:
        if self.count > limits.head_bytes_max:
            raise Refused(431, f"the head of a request may have {limits.head_bytes_max} bytes")


def _upgrade_begun(head: bytes) -> int:
    """Number of bytes at the end of `head` that may be the beginning of an upgrade header."""
    end = head[1 - len(_UPGRADE) :].lower()
    line = end.rfind(b"\n")
    return len(end) - line - 1 if line >= 0 and _UPGRADE.startswith(end[line:]) else 0


def _without_upgrades(head: bytes) -> bytes:
    """Renames upgrade headers. A case-insensitive regular expression would take thirty times as long."""
    lowered = head.lower()
    at = lowered.find(_UPGRADE)
    if at < 0:
        return head
    pieces: list[bytes] = []
    done = 0
    while at >= 0:
        pieces += (head[done : at + 1], _UPGRADE_RENAMED)
        done = at + len(_UPGRADE)
        at = lowered.find(_UPGRADE, done)
    return b"".join((*pieces, head[done:]))


class RequestHead:
    """The parsed head of one request."""

    __slots__ = ("_lines", "expects_continue", "headers", "target")

    def __init__(self) -> None:
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.expects_continue = False
        self._lines = 0

    def add(self, name: bytes, value: bytes, limits: EdgeLimits) -> None:
        """Raises `Refused`."""
        self._lines += 1
        if self._lines > limits.headers_max:
            raise Refused(431, f"a request may have {limits.headers_max} headers")
        if len(name) + len(value) > limits.field_bytes_max:
            raise Refused(431, f"a header exceeds {limits.field_bytes_max} bytes (limits.field_bytes_max)")
        name = name.lower()
        if name in _ONCE and name in self.headers:
            raise Refused(400, f"the header {name.decode()} may stand only once")
        # Several lines of one name are one list, or the last would hide the others.
        known = self.headers.get(name)
        self.headers[name] = value if known is None else known + b", " + value
        if name == b"expect" and value.lower() == b"100-continue":
            self.expects_continue = True

    def check(self, version: str) -> None:
        """Raises `Refused` if a request with this head cannot be served."""
        headers = self.headers
        if version not in ("1.1", "1.0"):
            raise Refused(505, "speak HTTP/1.1")
        if b"host" not in headers and version == "1.1":
            raise Refused(400, "the header host is missing")
        if b"transfer-encoding" in headers and headers[b"transfer-encoding"].lower() != b"chunked":
            raise Refused(501, "of transfer encodings only chunked is known")
