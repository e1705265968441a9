"""Fingerprint of a request: a hash of its tenant, model and body.

Two tenants never share a fingerprint, so no tenant can get another tenant's requests rejected.
"""

from hashlib import blake2b
from typing import Final

HASHED_AT_ONCE_BYTES: Final = 128 * 1024
"""Bodies up to this size are hashed in the event loop, in about 0.2 ms. Longer ones are to be hashed in a thread."""
_DIGEST_BYTES: Final = 16


def body_digest(body: bytes | bytearray) -> bytes:
    """A hash of every byte: two requests share it only if they are the same.

    The interpreter is free for other threads meanwhile, since `hashlib` does not hold it.
    """
    return blake2b(body, digest_size=_DIGEST_BYTES).digest()


def fingerprint(digest: bytes, tenant: str, model: str) -> str:
    named = f"{len(tenant)}:{tenant}{model}".encode(errors="surrogatepass")
    return blake2b(named, key=digest, digest_size=_DIGEST_BYTES).hexdigest()
