"""TLS contexts from files that change while they are read."""

import ssl
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from headgate.ports.tls import InvalidTlsFile, ServerTlsOptions, server_context, usable_server_context
from testing.certificates import Authority

DAY = timedelta(days=1)


def options_of(authority: Authority) -> ServerTlsOptions:
    return ServerTlsOptions(*authority.issue())


def now_s_of(options: ServerTlsOptions) -> float:
    """A time at which the certificate is valid."""
    [leaf, *_] = x509.load_pem_x509_certificates(Path(options.certificate).read_bytes())
    return (leaf.not_valid_before_utc + DAY).timestamp()


def test_certificate_that_is_replaced_between_the_check_and_its_use_is_checked_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = options_of(authority)
    now_s = now_s_of(options)

    def load(files: ServerTlsOptions) -> ssl.SSLContext:
        authority.issue(starts_in=DAY, expires_in=2 * DAY)
        return server_context(files)

    with pytest.raises(InvalidTlsFile, match="is not valid until"):
        usable_server_context(options, now_s, load=load)


def test_files_that_keep_changing_are_not_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = options_of(authority)

    def load(files: ServerTlsOptions) -> ssl.SSLContext:
        authority.issue()
        return server_context(files)

    with pytest.raises(InvalidTlsFile, match="changed while they were being read"):
        usable_server_context(options, now_s_of(options), load=load)


def test_key_of_another_type_is_reported_like_any_other_key(tmp_path: Path) -> None:
    options = options_of(Authority(tmp_path))
    certificate = x509.load_pem_x509_certificates(Path(options.certificate).read_bytes())[0]
    is_rsa = isinstance(certificate.public_key(), rsa.RSAPublicKey)
    key = ec.generate_private_key(ec.SECP256R1()) if is_rsa else rsa.generate_private_key(65_537, 2_048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    Path(options.key).write_bytes(pem)

    with pytest.raises(InvalidTlsFile, match="does not belong to the certificate"):
        server_context(options)


def test_path_with_a_zero_byte_is_reported() -> None:
    with pytest.raises(InvalidTlsFile, match="'a\\\\x00b' is not a valid path"):
        server_context(ServerTlsOptions("a\0b", "a\0b"))
