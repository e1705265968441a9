"""API key digests.

The configuration contains HMAC-SHA256(secret, key) instead of the key. A digest from the file cannot be used as a key,
and without the secret, guesses cannot be checked against it.
"""

import hashlib
import hmac
import re

PREFIX = "hmac-sha256:"

_BLOCK_BYTES = 64
"""Size of a block of SHA-256, to which HMAC pads the secret."""

_DIGEST = re.compile(re.escape(PREFIX) + "([0-9a-f]{64})")


def digest(secret: bytes, key: str) -> bytes:
    """Returns the digest of a key. Every text has a digest, so a malformed key is simply unknown."""
    return hmac.digest(secret, key.encode("utf-8", "surrogatepass"), hashlib.sha256)


class KeyDigester:
    """Computes the digests of keys with one secret.

    An HMAC hashes the padded secret twice before it hashes anything else. Both hashes are computed only once.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes) -> None:
        if len(secret) > _BLOCK_BYTES:
            secret = hashlib.sha256(secret).digest()
        padded = secret.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded))

    def digest(self, key: str) -> bytes:
        """Returns the same digest as the function `digest`."""
        inner = self._inner.copy()
        inner.update(key.encode("utf-8", "surrogatepass"))
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()


def format_digest(known: bytes) -> str:
    """Formats a digest for the configuration."""
    return PREFIX + known.hex()


def parse_digest(text: str) -> bytes | None:
    """Parses a digest from the configuration. Returns None if the text is not a digest."""
    found = _DIGEST.fullmatch(text)
    return bytes.fromhex(found[1]) if found else None
