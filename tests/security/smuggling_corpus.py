"""Byte sequences on which HTTP parsers disagree about the end of a request, with the allowed results.

Each row has the bytes to send and a verdict. The intended request contains "outer". A request hidden in it contains
"hidden" and must never be parsed as a request. The result must not depend on how the bytes are split into reads.
"""

from dataclasses import dataclass
from enum import Enum, auto

from tests.security.raw import CHUNKED, LAST_CHUNK, body_of, chunk, head_of, request_of

OUTER = body_of("outer")
HIDDEN = request_of(body_of("hidden"))
LENGTH = b"content-length: %d" % len(OUTER)
WHOLE_CHUNKS = chunk(OUTER) + LAST_CHUNK


class Verdict(Enum):
    TAKEN = auto()
    """The response is 200, and the engine received exactly the outer request."""
    REFUSED = auto()
    """The response is a 4xx or 5xx error about the message itself, or there is no response. The connection is closed,
    and no engine received a request.
    """
    TAKEN_OR_REFUSED = auto()
    """The standard allows both TAKEN and REFUSED."""
    TAKEN_ALONE = auto()
    """Like TAKEN, but the connection is closed after the response, and further bytes on it are not parsed."""
    TAKEN_ALONE_OR_CUT = auto()
    """Like TAKEN_ALONE, or the connection is closed without a response, because the caller itself asked to close it."""
    TAKEN_UNSERVED_OR_REFUSED = auto()
    UNSERVED = auto()
    """The request is valid, but its path or method is not served: 404 or 405. No engine received a request."""
    UNSERVED_OR_REFUSED = auto()
    NOT_ASKED = auto()
    """No engine received a request, whatever the response, because the declared body is invalid or incomplete."""


@dataclass(frozen=True, slots=True)
class Trick:
    name: str
    verdict: Verdict
    sent: bytes
    in_one_breath: bool = False
    """Whether the trick works only when sent in one piece. Later bytes would be a normal next request."""

    def __str__(self) -> str:
        return self.name


def _length(value: bytes, *more: bytes) -> bytes:
    return head_of(b"content-length:" + value, *more) + OUTER


def _coded(*lines: bytes) -> bytes:
    """Build a chunked request with these header lines."""
    return head_of(*lines) + WHOLE_CHUNKS


def _sized(size: bytes, *, after: bytes = b"\r\n") -> bytes:
    """Build a one-chunk request with this chunk size."""
    return head_of(CHUNKED) + size + b"\r\n" + OUTER + after + LAST_CHUNK


def _line(line: bytes) -> bytes:
    """Build an otherwise valid request with this additional header line."""
    return request_of(OUTER, line)


def _first(line: bytes) -> bytes:
    """Build an otherwise valid request with this request line."""
    return request_of(OUTER, first=line)


_HEX = b"%x" % len(OUTER)
_POST = b"POST /v1/chat/completions HTTP/1.1"
T, R, TR = Verdict.TAKEN, Verdict.REFUSED, Verdict.TAKEN_OR_REFUSED
U, UR, TUR = Verdict.UNSERVED, Verdict.UNSERVED_OR_REFUSED, Verdict.TAKEN_UNSERVED_OR_REFUSED
ALONE, ALONE_OR_CUT, N = Verdict.TAKEN_ALONE, Verdict.TAKEN_ALONE_OR_CUT, Verdict.NOT_ASKED

LENGTHS = [
    Trick("a plain length", T, _length(b" %d" % len(OUTER))),
    Trick("spaces and tabs around the length", T, _length(b" \t %d \t " % len(OUTER))),
    Trick("the same length twice", TR, head_of(LENGTH, LENGTH) + OUTER),
    Trick("two lengths", R, head_of(LENGTH, b"content-length: 5") + OUTER),
    Trick("two lengths, the shorter first", R, head_of(b"content-length: 0", LENGTH) + HIDDEN),
    Trick("a list of equal lengths", TR, _length(b" %d, %d" % (len(OUTER), len(OUTER)))),
    Trick("a list of lengths", R, _length(b" %d, 5" % len(OUTER))),
    Trick("length with a plus", R, _length(b" +%d" % len(OUTER))),
    Trick("negative length", R, _length(b" -%d" % len(OUTER))),
    Trick("minus zero", R, head_of(b"content-length: -0") + HIDDEN),
    Trick("length in hex", R, _length(b" 0x%x" % len(OUTER))),
    Trick("length with an underscore", R, _length(b" 1_0")),
    Trick("length with an exponent", R, _length(b" 1e1")),
    Trick("length with a fraction", R, _length(b" %d.0" % len(OUTER))),
    Trick("length in non-ASCII digits", R, _length(b" \xd9\xa5\xd9\xa6")),
    Trick("length that overflows 64 bits", R, _length(b" %d" % (2**64 + len(OUTER)))),
    Trick("length with a space inside", R, _length(b" %d 0" % len(OUTER))),
    Trick("length with a NUL", R, _length(b" %d\x00" % len(OUTER))),
    Trick("length with a vertical tab", R, _length(b" \x0b%d" % len(OUTER))),
    Trick("empty length", R, _length(b"")),
    Trick("length folded onto the next line", R, head_of(b"content-length:\r\n %d" % len(OUTER)) + OUTER),
    Trick("no length at all", N, head_of() + OUTER),
    Trick("length shorter than the body", N, head_of(b"content-length: %d" % (len(OUTER) - 5)) + OUTER),
    Trick(
        "length that ends the body before a hidden request",
        N,
        head_of(b"content-length: 2") + b"{}" + HIDDEN,
        in_one_breath=True,
    ),
]

CODINGS = [
    Trick("chunks", T, _coded(CHUNKED)),
    Trick("chunks, one byte each", T, head_of(CHUNKED) + b"".join(chunk(bytes([b])) for b in OUTER) + LAST_CHUNK),
    Trick("chunked in upper case", T, _coded(b"TRANSFER-ENCODING: CHUNKED")),
    Trick("CL.TE", R, head_of(b"content-length: %d" % len(LAST_CHUNK + HIDDEN), CHUNKED) + LAST_CHUNK + HIDDEN),
    Trick("TE.CL", R, head_of(CHUNKED, b"content-length: 4") + chunk(HIDDEN) + LAST_CHUNK),
    Trick("chunks and a fitting length", R, _coded(CHUNKED, b"content-length: %d" % len(WHOLE_CHUNKS))),
    Trick("chunks and a length of 0", R, _coded(b"content-length: 0", CHUNKED)),
    Trick("xchunked with a length", R, head_of(LENGTH, b"transfer-encoding: xchunked") + OUTER),
    Trick("xchunked", R, _coded(b"transfer-encoding: xchunked")),
    Trick("identity", R, _coded(b"transfer-encoding: identity")),
    Trick("identity with a length", R, head_of(LENGTH, b"transfer-encoding: identity") + OUTER),
    Trick("chunked, identity", R, _coded(b"transfer-encoding: chunked, identity")),
    Trick("identity, chunked", R, _coded(b"transfer-encoding: identity, chunked")),
    Trick("gzip, chunked", R, _coded(b"transfer-encoding: gzip, chunked")),
    Trick("gzip", R, _coded(b"transfer-encoding: gzip")),
    Trick("chunked twice in one line", R, _coded(b"transfer-encoding: chunked, chunked")),
    Trick("chunked twice in two lines", R, _coded(CHUNKED, CHUNKED)),
    Trick("chunked, then identity in another line", R, _coded(CHUNKED, b"transfer-encoding: identity")),
    Trick("identity, then chunked in another line", R, _coded(b"transfer-encoding: identity", CHUNKED)),
    Trick("chunked with a parameter", R, _coded(b"transfer-encoding: chunked;q=1")),
    Trick("chunked in quotes", R, _coded(b'transfer-encoding: "chunked"')),
    Trick("chunked with a comma before it", TR, _coded(b"transfer-encoding: ,chunked")),
    Trick("chunked with a comma after it", R, _coded(b"transfer-encoding: chunked,")),
    Trick("empty coding", R, _coded(b"transfer-encoding:")),
    Trick("empty coding with a length", R, head_of(LENGTH, b"transfer-encoding:") + OUTER),
    Trick("chunked after many spaces", T, _coded(b"transfer-encoding:    chunked")),
    Trick("chunked after a tab", TR, _coded(b"transfer-encoding:\tchunked")),
    Trick("chunked and a space after it", TR, _coded(b"transfer-encoding: chunked ")),
    Trick("chunked after a vertical tab", R, _coded(b"transfer-encoding: \x0bchunked")),
    Trick("chunked after a form feed", R, _coded(b"transfer-encoding: \x0cchunked")),
    Trick("chunked and a vertical tab after it", R, _coded(b"transfer-encoding: chunked\x0b")),
    Trick("chunked with a NUL", R, _coded(b"transfer-encoding: chunked\x00")),
    Trick("chunked after a non-breaking space", R, _coded(b"transfer-encoding: \xa0chunked")),
    Trick("space before the colon", R, _coded(b"transfer-encoding : chunked")),
    Trick("space before the colon, with a length", R, head_of(LENGTH, b"transfer-encoding : chunked") + OUTER),
    Trick("tab before the colon", R, _coded(b"transfer-encoding\t: chunked")),
    Trick("a coding folded onto the next line", R, _coded(b"transfer-encoding:\r\n chunked")),
    Trick("a coding after a folded line", R, head_of(LENGTH, b"x-a: b\r\n transfer-encoding: chunked") + OUTER),
    Trick("a differently spelt name is another header", T, _line(b"transfer_encoding: chunked")),
    Trick("a name with an extra letter is another header", T, _line(b"xtransfer-encoding: chunked")),
    Trick("chunks in HTTP/1.0", TR, head_of(CHUNKED, first=_POST[:-1] + b"0") + WHOLE_CHUNKS),
    Trick(
        "chunks and a length in HTTP/1.0",
        R,
        head_of(CHUNKED, b"content-length: 4", first=_POST[:-1] + b"0") + chunk(HIDDEN) + LAST_CHUNK,
    ),
]

CHUNKS = [
    Trick("leading zeros", TR, _sized(b"000" + _HEX)),
    Trick("capital digits", T, _sized(_HEX.upper())),
    Trick("an extension", TR, _sized(_HEX + b";a=b")),
    Trick("an extension in quotes", TR, _sized(_HEX + b';a="b;c"')),
    Trick("an extension with a line feed", R, _sized(_HEX + b";a\nb")),
    Trick("an extension with a carriage return", R, _sized(_HEX + b";a\rb")),
    Trick("an extension with a NUL", TR, _sized(_HEX + b";a=\x00")),
    Trick("size with 0x", R, _sized(b"0x" + _HEX)),
    Trick("negative size", R, _sized(b"-" + _HEX)),
    Trick("size with a plus", R, _sized(b"+" + _HEX)),
    Trick("size with an underscore", R, _sized(b"0_" + _HEX)),
    Trick("size with junk after it", R, _sized(_HEX + b"g")),
    Trick("size with a space before it", R, _sized(b" " + _HEX)),
    Trick("size with a space after it", TR, _sized(_HEX + b" ")),
    Trick("size with a tab after it", R, _sized(_HEX + b"\t")),
    Trick("empty size", R, _sized(b"")),
    Trick("size that overflows 64 bits", R, _sized(b"1" + b"0" * 16)),
    Trick("size that overflows to the right one", R, _sized(b"1" + b"0" * 14 + _HEX)),
    Trick("size of 64 bits", N, _sized(b"f" * 16)),
    Trick("size ended by a line feed", R, head_of(CHUNKED) + _HEX + b"\n" + OUTER + b"\r\n" + LAST_CHUNK),
    Trick("size ended by a carriage return", R, head_of(CHUNKED) + _HEX + b"\r" + OUTER + b"\r\n" + LAST_CHUNK),
    Trick("data ended by a line feed", R, _sized(_HEX, after=b"\n")),
    Trick("data ended by nothing", R, _sized(_HEX, after=b"")),
    Trick("data ended by two other bytes", R, _sized(_HEX, after=b"xx")),
    Trick("data longer than declared", R, _sized(b"%x" % (len(OUTER) - 3))),
    Trick(
        "data shorter than declared", N, head_of(CHUNKED) + b"%x\r\n" % (len(OUTER) + 3) + OUTER + b"\r\n" + LAST_CHUNK
    ),
    Trick("the last chunk ended by line feeds", R, head_of(CHUNKED) + chunk(OUTER) + b"0\n\n" + HIDDEN),
    Trick("a last chunk of two zeros", TR, head_of(CHUNKED) + chunk(OUTER) + b"00\r\n\r\n"),
    Trick("a trailer", TR, head_of(CHUNKED) + chunk(OUTER) + b"0\r\nx-sum: 1\r\n\r\n"),
    Trick("a length in the trailer", TR, head_of(CHUNKED) + chunk(OUTER) + b"0\r\ncontent-length: 5\r\n\r\n"),
    Trick("a coding in the trailer", TR, head_of(CHUNKED) + chunk(OUTER) + b"0\r\n" + CHUNKED + b"\r\n\r\n"),
    Trick("a trailer without a colon", R, head_of(CHUNKED) + chunk(OUTER) + b"0\r\nnothing\r\n\r\n"),
    Trick("a trailer with a space in its name", R, head_of(CHUNKED) + chunk(OUTER) + b"0\r\na b: c\r\n\r\n"),
    Trick("a request as the trailer", R, head_of(CHUNKED) + chunk(OUTER) + b"0\r\n" + HIDDEN),
    Trick("nothing after the last size", N, head_of(CHUNKED) + chunk(OUTER) + b"0\r\n"),
]

LINES = [
    Trick("empty lines first", TR, b"\r\n\r\n" + request_of(OUTER)),
    Trick("bare line feeds", R, request_of(OUTER).replace(b"\r\n", b"\n")),
    Trick("a bare line feed in the head", R, _line(b"x-a: b\nx-c: d")),
    Trick("a coding after a bare line feed", R, _line(b"x-a: b\ntransfer-encoding: chunked")),
    Trick("a coding after a bare carriage return", R, _line(b"x-a: b\rtransfer-encoding: chunked")),
    Trick("a head that ends in line feeds", R, head_of(LENGTH)[:-4] + b"\n\n" + OUTER),
    Trick("a head that ends in a mixture", R, head_of(LENGTH)[:-4] + b"\r\n\n" + OUTER),
    Trick("bare carriage returns", R, head_of(LENGTH).replace(b"\r\n", b"\r") + OUTER),
    Trick("two carriage returns", R, _line(b"x-a: b\r")),
    Trick("a folded line", R, _line(b"x-a: b\r\n c")),
    Trick("a folded first header", R, _first(_POST + b"\r\n x-a: b")),
    Trick("a header without a colon", R, _line(b"x-a")),
    Trick("a header without a name", R, _line(b": a")),
    Trick("a header with a space in its name", R, _line(b"x a: b")),
    Trick("a header with a space before the colon", R, _line(b"x-a : b")),
    Trick("a header name with a NUL", R, _line(b"x\x00a: b")),
    Trick("a header name with letters beyond ASCII", R, _line(b"x-\xfc: b")),
    Trick("a header name in brackets", R, _line(b"(x): b")),
    Trick("a header value with a NUL", R, _line(b"x-a: b\x00c")),
    Trick("a header value with a control character", TR, _line(b"x-a: b\x01c")),
    Trick("a header value with bytes beyond ASCII", T, _line(b"x-a: \xfc\xff")),
    Trick("an empty header value", T, _line(b"x-a:")),
    Trick("a request line with two spaces", TR, _first(_POST.replace(b" /", b"  /"))),
    Trick("a request line with a tab", R, _first(_POST.replace(b" /", b"\t/"))),
    Trick("a request line with a space at its end", R, _first(_POST + b" ")),
    Trick("a request line with a space before it", R, _first(b" " + _POST)),
    Trick("a request line without a version", R, _first(b"POST /v1/chat/completions")),
    Trick("a target with a NUL", UR, _first(_POST.replace(b"/v1", b"/v1\x00"))),
    Trick("a target with bytes beyond ASCII", UR, _first(_POST.replace(b"/v1", b"/v1\xff"))),
    Trick("a target with a line feed", R, _first(_POST.replace(b"/v1", b"/v1\n"))),
    Trick("a target that is empty", R, _first(b"POST  HTTP/1.1")),
]

VERSIONS_AND_METHODS = [
    Trick("HTTP/0.9", R, b"GET /v1/models\r\n\r\n"),
    Trick("HTTP/0.9 by name", R, _first(_POST[:-3] + b"0.9")),
    Trick("HTTP/1.0", TR, _first(_POST[:-1] + b"0")),
    Trick("HTTP/1.2", TR, _first(_POST[:-1] + b"2")),
    Trick("HTTP/2.0", R, _first(_POST[:-3] + b"2.0")),
    Trick("HTTP/11", R, _first(_POST[:-3] + b"11")),
    Trick("HTTP/1.10", R, _first(_POST + b"0")),
    Trick("http in lower case", R, _first(_POST.replace(b"HTTP", b"http"))),
    Trick("another protocol", R, _first(_POST.replace(b"HTTP", b"ICY"))),
    Trick("the HTTP/2 preface", R, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"),
    Trick("TLS", R, bytes.fromhex("16030102000100 01fc0303") + bytes(512)),
    Trick("a method in lower case", UR, _first(_POST.replace(b"POST", b"post"))),
    Trick("a method with an extra letter", UR, _first(b"X" + _POST)),
    Trick("a request in the body of a GET", U, request_of(HIDDEN, first=b"GET /v1/chat/completions HTTP/1.1")),
    Trick("a request in the body of a DELETE", U, request_of(HIDDEN, first=b"DELETE /v1/models HTTP/1.1")),
    Trick("a request in the body of an unknown path", U, request_of(HIDDEN, first=b"POST /v1/nothing HTTP/1.1")),
    Trick(
        "a request in the chunks of an unknown path",
        U,
        head_of(CHUNKED, first=b"POST /v1/nothing HTTP/1.1") + chunk(HIDDEN) + LAST_CHUNK,
    ),
    Trick("TRACE", UR, head_of(first=b"TRACE /v1/models HTTP/1.1")),
    Trick("OPTIONS for everything", UR, head_of(first=b"OPTIONS * HTTP/1.1")),
    Trick("CONNECT", UR, head_of(first=b"CONNECT x:80 HTTP/1.1")),
    Trick("CONNECT to a path", UR, head_of(first=b"CONNECT /v1/models HTTP/1.1")),
    Trick("another method by a header", T, _line(b"x-http-method-override: DELETE")),
    Trick("another path by a header", T, _line(b"x-original-url: /status\r\nx-rewrite-url: /status")),
]

TARGETS = [
    Trick("absolute form", TUR, _first(b"POST http://x/v1/chat/completions HTTP/1.1")),
    Trick("absolute form with another host", TUR, _first(b"POST http://other:1/v1/chat/completions HTTP/1.1")),
    Trick("absolute form of another scheme", UR, _first(b"POST ftp://x/v1/chat HTTP/1.1")),
    Trick("authority form", UR, _first(b"POST x:80 HTTP/1.1")),
    Trick("asterisk form", UR, _first(b"POST * HTTP/1.1")),
    Trick("no Host", R, request_of(OUTER, host=None)),
    Trick("no Host in HTTP/1.0", TR, request_of(OUTER, host=None, first=_POST[:-1] + b"0")),
    Trick("two Hosts", R, _line(b"host: y")),
    Trick("the same Host twice", R, _line(b"host: x")),
    Trick("a Host with a path", TR, request_of(OUTER, host=b"x/v1")),
    Trick("an empty Host", TR, request_of(OUTER, host=b"")),
]

CONNECTIONS = [
    Trick("Connection: content-length", T, _line(b"connection: content-length")),
    Trick("Connection: transfer-encoding", T, _coded(CHUNKED, b"connection: transfer-encoding")),
    Trick("Connection: close", ALONE, _line(b"connection: close")),
    Trick(
        "Connection: close, and a hidden request",
        ALONE_OR_CUT,
        _line(b"connection: close") + HIDDEN,
        in_one_breath=True,
    ),
    Trick("a pipelined second request", ALONE, request_of(OUTER) + HIDDEN, in_one_breath=True),
    Trick("a second request after chunks", ALONE, _coded(CHUNKED) + HIDDEN, in_one_breath=True),
    Trick("half a second request", ALONE, request_of(OUTER) + HIDDEN[:-9], in_one_breath=True),
    Trick("an offer of HTTP/2", T, _line(b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AA")),
    Trick("an offer of HTTP/2 with chunks", T, _coded(b"connection: upgrade", b"upgrade: h2c", CHUNKED)),
    Trick("an offer of websockets", T, _line(b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: AA==")),
    Trick("Upgrade with a space before the colon", R, _line(b"connection: upgrade\r\nupgrade : h2c")),
    Trick("Expect", T, _line(b"expect: 100-continue")),
    Trick("Expect in upper case", T, _line(b"EXPECT: 100-CONTINUE")),
    Trick("Expect twice", TR, _line(b"expect: 100-continue\r\nexpect: 100-continue")),
    Trick("Expect with chunks", T, _coded(CHUNKED, b"expect: 100-continue")),
    Trick("Expect in HTTP/1.0", TR, request_of(OUTER, b"expect: 100-continue", first=_POST[:-1] + b"0")),
    Trick("Expect something else", TR, _line(b"expect: banana")),
    Trick(
        "Expect, and a request in a rejected body",
        U,
        request_of(HIDDEN, b"expect: 100-continue", first=b"POST /no HTTP/1.1"),
        in_one_breath=True,
    ),
]

TRICKS = [*LENGTHS, *CODINGS, *CHUNKS, *LINES, *VERSIONS_AND_METHODS, *TARGETS, *CONNECTIONS]
