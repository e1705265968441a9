"""Fingerprint of a request: a hash of its tenant, model and body.

Two tenants never share a fingerprint, so no tenant can get another tenant's requests rejected.
"""

from hashlib import blake2b
from typing import Final

HASHED_BYTES: Final = 64 * 1024
"""Of a longer body only its length, start and end are hashed, to bound the work."""
_DIGEST_BYTES: Final = 16


def body_digest(body: bytes | bytearray) -> bytes:
    hashed = blake2b(b"%d:" % len(body), digest_size=_DIGEST_BYTES)
    if len(body) <= 2 * HASHED_BYTES:
        hashed.update(body)
    else:
        whole = memoryview(body)
        hashed.update(whole[:HASHED_BYTES])
        hashed.update(whole[-HASHED_BYTES:])
    return hashed.digest()


def fingerprint(digest: bytes, tenant: str, model: str) -> str:
    named = f"{len(tenant)}:{tenant}{model}".encode(errors="surrogatepass")
    return blake2b(named, key=digest, digest_size=_DIGEST_BYTES).hexdigest()
