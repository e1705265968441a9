"""Is a key recognised by its hash, and by nothing else?"""

import hashlib
import hmac

import pytest

from headgate.wire.keys import PREFIX, digest, format_digest, parse_digest


def test_the_digest_is_the_keyed_hash() -> None:
    assert digest(b"secret", "hg-key") == hmac.new(b"secret", b"hg-key", hashlib.sha256).digest()


def test_a_digest_is_written_as_it_is_read() -> None:
    known = digest(b"secret", "hg-key")

    assert parse_digest(format_digest(known)) == known


def test_any_text_has_a_digest() -> None:
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
def test_what_is_not_a_digest_is_not_read(text: str) -> None:
    assert parse_digest(text) is None
