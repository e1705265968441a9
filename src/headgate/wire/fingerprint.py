"""How is a request recognised when it comes again?

By a hash of its tenant, its model and its body. Two tenants never share a fingerprint, so that no tenant can have
another's requests refused.
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
