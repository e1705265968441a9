"""How is a request recognised when it comes again?

By a hash of its tenant, its model and its body. Two tenants never share a fingerprint, so that no tenant can have
another's requests refused.
"""

from hashlib import blake2b
from typing import Final

HASHED_BYTES: Final = 64 * 1024
"""Of a long body its length, its beginning and its end are hashed, so that the work is bounded."""
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
