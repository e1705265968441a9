"""Digests of API keys."""

import hashlib
import hmac

import pytest

from headgate.wire.keys import PREFIX, KeyDigester, digest, format_digest, parse_digest


def test_digest_is_a_keyed_hash() -> None:
    assert digest(b"secret", "hg-key") == hmac.new(b"secret", b"hg-key", hashlib.sha256).digest()


@pytest.mark.parametrize(
    "secret", [b"", b"s", b"s" * 32, b"s" * 63, b"s" * 64, b"s" * 65, b"s" * 200, bytes(range(64))]
)
def test_digester_computes_the_same_digests_for_each_of_its_keys(secret: bytes) -> None:
    digester = KeyDigester(secret)

    for key in ("hg-key", "", "k" * 200, "\udcff\ud800\xe9", "hg-key"):
        assert digester.digest(key) == digest(secret, key)


def test_digest_text_round_trips() -> None:
    known = digest(b"secret", "hg-key")

    assert parse_digest(format_digest(known)) == known


def test_any_text_can_be_hashed() -> None:
    assert len(digest(b"secret", "\udcff\ud800\xe9")) == 32


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hg-key",
        "ab" * 32,
        PREFIX,
        PREFIX + "AB" * 32,
        "sha256:" + "ab" * 32,
        PREFIX + "ab" * 33,
        PREFIX + "ab" * 31,
    ],
)
def test_malformed_digest_is_not_parsed(text: str) -> None:
    assert parse_digest(text) is None
