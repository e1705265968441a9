"""Fingerprint of a request: a hash of its tenant, model and body.

Two tenants never share a fingerprint, so no tenant can cause another tenant's requests to be rejected.
"""

from hashlib import blake2b
from typing import Final

HASHED_AT_ONCE_BYTES: Final = 128 * 1024
"""Maximum size of a body that is hashed in the event loop, which takes about 0.2 ms.

Larger bodies are hashed in a thread.
"""
_DIGEST_BYTES: Final = 16


def body_digest(body: bytes | bytearray | memoryview) -> bytes:
    """Returns a hash of the complete body. Releases the interpreter lock, so that other threads can run."""
    return blake2b(body, digest_size=_DIGEST_BYTES).digest()


def fingerprint(digest: bytes, tenant: str, model: str) -> str:
    # The digest has a fixed length, so different tenants, models and bodies never give the same bytes.
    named = f"{len(tenant)}:{tenant}{model}".encode(errors="surrogatepass")
    return blake2b(digest + named, digest_size=_DIGEST_BYTES).hexdigest()
