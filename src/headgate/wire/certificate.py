"""Reads the validity period of X.509 certificates in PEM files.

Only the certificate's own DER structure is read. OpenSSL verifies everything else during handshakes.
"""

import base64
import binascii
import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----\s+([A-Za-z0-9+/=\s]+?)-----END CERTIFICATE-----")
_SEQUENCE: Final = 0x30
_EXPLICIT_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_FIELDS_BEFORE_VALIDITY: Final = 3
"""Serial number, signature algorithm and issuer."""
_UTC_TIME_CENTURY_SPLIT: Final = 50
"""Two-digit years from here on belong to the 20th century (RFC 5280)."""


class Validity(NamedTuple):
    """When a certificate becomes valid and when it expires, in seconds since 1970."""

    starts_at: int
    expires_at: int


class InvalidCertificate(ValueError):
    """The bytes are not a certificate in PEM form."""


def validity(pem: bytes) -> Validity:
    """Returns the validity period of the first certificate in a PEM file. Raises `InvalidCertificate`."""
    found = _PEM.search(pem)
    if found is None:
        raise InvalidCertificate("contains no PEM certificate")
    try:
        return _validity(base64.b64decode(b"".join(found[1].split()), validate=True))
    except (IndexError, ValueError, binascii.Error) as error:
        raise InvalidCertificate("contains a malformed certificate") from error


def _validity(der: bytes) -> Validity:
    _, certificate, _ = _element(der, _SEQUENCE)
    _, to_be_signed, _ = _element(certificate, _SEQUENCE)
    rest = to_be_signed
    if rest[0] == _EXPLICIT_VERSION:
        _, _, rest = _element(rest)
    for _ in range(_FIELDS_BEFORE_VALIDITY):
        _, _, rest = _element(rest)
    _, period, _ = _element(rest, _SEQUENCE)
    kind, starts_at, rest = _element(period)
    ends_kind, expires_at, _ = _element(rest)
    return Validity(_timestamp(kind, starts_at), _timestamp(ends_kind, expires_at))


def _element(der: bytes, expected: int | None = None) -> tuple[int, bytes, bytes]:
    """Returns the tag and the content of the first element, and the bytes after it."""
    tag, length, start = der[0], der[1], 2
    if expected is not None and tag != expected:
        raise ValueError("unexpected element")
    if length & 0x80:
        size = length & 0x7F
        length, start = int.from_bytes(der[2 : 2 + size]), 2 + size
    if start + length > len(der):
        raise ValueError("truncated element")
    return tag, der[start : start + length], der[start + length :]


def _timestamp(kind: int, content: bytes) -> int:
    text = content.decode("ascii")
    if kind == _UTC_TIME:
        text = ("19" if int(text[:2]) >= _UTC_TIME_CENTURY_SPLIT else "20") + text
    elif kind != _GENERALIZED_TIME:
        raise ValueError("not a time")
    return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp())
