"""Validity periods of certificates in PEM files."""

import base64
from datetime import UTC, datetime

import pytest
import trustme
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from headgate.wire.certificate import InvalidCertificate, Validity, validity

AUTHORITY = trustme.CA()
BEFORE_2050 = (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC))
AFTER_2050 = (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), datetime(2050, 1, 1, tzinfo=UTC))


def certificate(period: tuple[datetime, datetime] = BEFORE_2050) -> bytes:
    leaf = AUTHORITY.issue_cert("h", not_before=period[0], not_after=period[1])
    return leaf.cert_chain_pems[0].bytes()


def pem(der: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("period", [BEFORE_2050, AFTER_2050])
def test_validity_is_the_one_in_the_certificate(period: tuple[datetime, datetime]) -> None:
    made = certificate(period)
    read = x509.load_pem_x509_certificate(made)

    assert validity(made) == Validity(
        int(read.not_valid_before_utc.timestamp()), int(read.not_valid_after_utc.timestamp())
    )
    assert validity(made) == Validity(*(int(each.timestamp()) for each in period))


def test_first_certificate_of_a_chain_counts() -> None:
    first, second = certificate(BEFORE_2050), certificate(AFTER_2050)

    assert validity(first + second) == validity(first) != validity(second)


def test_text_around_a_certificate_is_ignored() -> None:
    made = certificate()

    assert validity(b"subject=CN\r\n" + made.replace(b"\n", b"\r\n") + b"\n# end") == validity(made)


@pytest.mark.parametrize("content", [b"", b"text", AUTHORITY.private_key_pem.bytes(), b"-----BEGIN CERTIFICATE-----"])
def test_file_without_a_certificate_is_rejected(content: bytes) -> None:
    with pytest.raises(InvalidCertificate, match="contains no PEM certificate"):
        validity(content)


def test_truncated_certificate_is_rejected() -> None:
    der = base64.b64decode(b"".join(certificate().splitlines()[1:-1]))
    beyond_validity = 200
    for length in range(1, beyond_validity):
        with pytest.raises(InvalidCertificate, match="contains a malformed certificate"):
            validity(pem(der[:length]))


@given(st.binary(min_size=1, max_size=300))
def test_arbitrary_bytes_are_rejected(der: bytes) -> None:
    with pytest.raises(InvalidCertificate):
        validity(pem(der))


@given(st.integers(0, 400), st.integers(0, 255))
def test_changed_certificate_is_read_or_rejected(at: int, byte: int) -> None:
    der = bytearray(base64.b64decode(b"".join(certificate().splitlines()[1:-1])))
    der[at % len(der)] = byte
    try:
        found = validity(pem(bytes(der)))
    except InvalidCertificate:
        return
    assert isinstance(found.expires_at, int)
