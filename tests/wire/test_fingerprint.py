"""Tests for request fingerprints."""

from headgate.wire.fingerprint import HASHED_AT_ONCE_BYTES, body_digest, fingerprint

BODY = b'{"model":"m"}'


def test_equal_bodies_from_one_tenant_have_equal_fingerprints() -> None:
    assert fingerprint(body_digest(BODY), "acme", "m") == fingerprint(body_digest(bytearray(BODY)), "acme", "m")


def test_fingerprint_depends_on_tenant_model_and_body() -> None:
    digest = body_digest(BODY)
    found = {
        fingerprint(digest, "acme", "m"),
        fingerprint(digest, "bolt", "m"),
        fingerprint(digest, "acme", "n"),
        fingerprint(body_digest(BODY + b" "), "acme", "m"),
        # The boundary between tenant and model matters.
        fingerprint(digest, "acm", "em"),
    }
    assert len(found) == 5


def test_digest_depends_on_every_byte_of_a_long_body() -> None:
    """A request that differs from a quarantined one only in the middle must not match it."""
    size = 4 * HASHED_AT_ONCE_BYTES
    long = bytearray(size)
    digest = body_digest(long)
    for place in (0, size // 4, size // 2, 3 * size // 4, size - 1):
        changed = bytearray(long)
        changed[place] = 1
        assert body_digest(changed) != digest
    assert body_digest(long + b"\0") != digest
