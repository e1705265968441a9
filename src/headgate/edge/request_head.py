"""Request head: the raw bytes before parsing and the headers after parsing.

Ambiguous heads are rejected, because a proxy in front of the gateway may have interpreted them differently (request
smuggling).
"""

from typing import Final, NoReturn

from headgate.edge.options import EdgeLimits

# Java's HTTP client offers an upgrade to HTTP/2 with every request. The parser would stop there and lose the body.
_UPGRADE: Final = b"\nupgrade:"
_UPGRADE_RENAMED: Final = b"x-upgrade-passed-over:"
_END_OF_HEAD: Final = b"\r\n\r\n"
_LAST_OF_HEAD: Final = _END_OF_HEAD[-3:]
_LINE_BREAKS: Final = b"\r\n"
_CARRIAGE_RETURN: Final = 0x0D
_SINGLE_HEADERS: Final = frozenset({b"host", b"authorization", b"x-api-key", b"content-length", b"transfer-encoding"})
"""Headers that make a request ambiguous if they occur more than once."""


class HttpRejection(Exception):
    """The received bytes are not an acceptable request. The gateway sends this status and closes the connection."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HeadBytes:
    """Counts the bytes of a head and renames its upgrade header, even if it is split across reads."""

    __slots__ = ("_last", "_unparsed", "count")

    def __init__(self) -> None:
        self.count = 0
        """Number of bytes of the current head so far."""
        self._last: bytes = b""
        """Last three bytes of the head so far; fewer while it consists only of line breaks."""
        self._unparsed: bytes = b""
        """Bytes that have not been parsed yet, because they may be the start of an upgrade header."""

    def clear(self) -> None:
        self.count = 0
        self._last = self._unparsed = b""

    def feed(self, data: bytes, limits: EdgeLimits) -> bytes:
        """Returns the bytes to parse. Raises `HttpRejection`."""
        before = self._last
        if not before and not self._unparsed:
            # Most heads arrive in one piece and have no upgrade header.
            head_bytes = data.find(_END_OF_HEAD) + 4
            if (
                head_bytes > 3 and data[0] > _CARRIAGE_RETURN and data[:head_bytes].lower().find(_UPGRADE) < 0
            ):  # `find` is faster than `in`.
                self.count += head_bytes
                self.check(limits)
                self._last = _LAST_OF_HEAD
                return data
        seen = before + self._unparsed + data
        # Blank lines before a request do not end its head.
        start = 0 if len(before) == 3 else len(seen) - len(seen.lstrip(_LINE_BREAKS))
        end = seen.find(_END_OF_HEAD, start)
        head, rest = (seen, b"") if end < 0 else (seen[: end + 4], seen[end + 4 :])
        self.count += len(head) - len(before) - len(self._unparsed)
        self.check(limits)
        held_bytes = _partial_upgrade_bytes(head)
        self._unparsed = head[len(head) - held_bytes :]
        head = head[: len(head) - held_bytes]
        self._last = head[-3:] if start < len(seen) else head[-2:]
        return _without_upgrades(head)[len(before) :] + rest

    def check(self, limits: EdgeLimits) -> None:
        if self.count > limits.header_bytes_max:
            raise HttpRejection(
                431, f"the request head exceeds {limits.header_bytes_max} bytes (limits.header_bytes_max)"
            )


def _partial_upgrade_bytes(head: bytes) -> int:
    """Returns the number of bytes at the end of `head` that may be the start of an upgrade header."""
    end = head[1 - len(_UPGRADE) :].lower()
    line = end.rfind(b"\n")
    return len(end) - line - 1 if line >= 0 and _UPGRADE.startswith(end[line:]) else 0


def _without_upgrades(head: bytes) -> bytes:
    """Renames upgrade headers. A case-insensitive regular expression would be thirty times slower."""
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
    """Parsed head of one request."""

    __slots__ = ("expects_continue", "headers", "lines", "target")

    def __init__(self) -> None:
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.expects_continue = False
        self.lines = 0
        """Number of headers so far. The reader adds them (`RequestReader.on_header`)."""

    def reject_sizes(self, limits: EdgeLimits) -> NoReturn:
        """Raises the `HttpRejection` for a head with too many headers, or with a header that is too long."""
        if self.lines > limits.header_count_max:
            raise HttpRejection(
                431, f"the request has more than {limits.header_count_max} headers (limits.header_count_max)"
            )
        raise HttpRejection(431, f"a header exceeds {limits.field_bytes_max} bytes (limits.field_bytes_max)")

    def add_repeated(self, name: bytes, value: bytes) -> None:
        """Adds a header that has occurred before. Raises `HttpRejection`."""
        if name in _SINGLE_HEADERS:
            raise HttpRejection(400, f"the {name.decode()} header must not occur more than once")
        # Repeated headers are joined into one list. Otherwise the last one would hide the others.
        self.headers[name] += b", " + value

    def check(self, version: str) -> None:
        """Raises `HttpRejection` if a request with this head cannot be served."""
        headers = self.headers
        if version not in ("1.1", "1.0"):
            raise HttpRejection(505, "unsupported HTTP version; use HTTP/1.1")
        if b"host" not in headers and version == "1.1":
            raise HttpRejection(400, "the host header is missing")
        if b"transfer-encoding" in headers and headers[b"transfer-encoding"].lower() != b"chunked":
            raise HttpRejection(501, "unsupported transfer encoding; only chunked is supported")
