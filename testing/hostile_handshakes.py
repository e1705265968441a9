"""First bytes that no correct TLS client sends, and the reason that a gateway counts for each."""

import ssl
from collections.abc import Mapping
from typing import Final, NamedTuple

from headgate.edge.tls_handshake import HandshakeFailure

_HANDSHAKE_RECORD: Final = b"\x16\x03\x01"
_RECORD_BYTES_MAX: Final = 16_384


class HostileBytes(NamedTuple):
    data: bytes
    reason: HandshakeFailure
    """`CLOSED` if the bytes are only a beginning, after which the client closes the connection."""


def client_hello() -> bytes:
    """The first record of a correct handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(received, sent).do_handshake()
    except ssl.SSLWantReadError:
        return sent.read()
    raise AssertionError("a handshake cannot end without a server")


def hostile_bytes() -> Mapping[str, HostileBytes]:
    hello, invalid = client_hello(), HandshakeFailure.INVALID
    # SSLv3: version 3.0, a random of 32 bytes, no session, one cipher, no compression.
    old = b"\x03\x00" + bytes(32) + b"\x00" + b"\x00\x02\x00\x0a" + b"\x01\x00"
    old = b"\x01" + len(old).to_bytes(3, "big") + old
    return {
        "plain HTTP": HostileBytes(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n", HandshakeFailure.PLAIN_HTTP),
        "a proxy request": HostileBytes(b"CONNECT localhost:443 HTTP/1.1\r\n\r\n", invalid),
        "SSLv3": HostileBytes(b"\x16\x03\x00" + len(old).to_bytes(2, "big") + old, HandshakeFailure.NO_COMMON_PROTOCOL),
        "SSLv2": HostileBytes(b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + bytes(37), invalid),
        "half a ClientHello": HostileBytes(hello[: len(hello) // 2], HandshakeFailure.CLOSED),
        "a ClientHello, then nothing": HostileBytes(hello, HandshakeFailure.CLOSED),
        "a ClientHello, then garbage": HostileBytes(hello + b"\xff" * 4_096, invalid),
        "two ClientHellos": HostileBytes(hello + hello, invalid),
        "an oversized record": HostileBytes(_HANDSHAKE_RECORD + b"\xff\xff" + bytes(65_535), invalid),
        "a handshake message of 16 MiB": HostileBytes(
            _HANDSHAKE_RECORD + _RECORD_BYTES_MAX.to_bytes(2, "big") + b"\x01\xff\xff\xff" + bytes(_RECORD_BYTES_MAX),
            invalid,
        ),
        "empty records": HostileBytes((_HANDSHAKE_RECORD + b"\x00\x00") * 4_096, invalid),
        "an alert": HostileBytes(b"\x15\x03\x01\x00\x02\x02\x28", invalid),
        "application data": HostileBytes(b"\x17\x03\x03\x00\x20" + bytes(32), invalid),
        "zeros": HostileBytes(bytes(1_024), invalid),
    }
