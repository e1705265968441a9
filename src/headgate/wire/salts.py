"""How are the cached prefixes of tenants kept apart?

An engine that takes a salt shares the work on a prompt's beginning only between requests of the same salt. Whoever
could choose another tenant's salt could find out, by how quick an answer comes, what that tenant has asked. So the salt
that an engine sees is derived: from one that only we know and that each tenant has of its own, and from what the caller
sent, so that a caller can still keep its own users apart.
"""

import hashlib
import hmac
from functools import lru_cache


def tenant_salt(secret: bytes, tenant: str) -> str:
    """A tenant's own salt, the same in every process that shares the secret."""
    return hmac.digest(secret, b"cache_salt:" + tenant.encode("utf-8", "surrogatepass"), hashlib.sha256).hex()


def engine_salt(tenants: str, callers: str | None) -> str:
    """What the engine is told. Of one length always, so that nothing an engine may append makes two of them alike."""
    return _derived(tenants, callers) if callers else _plain(tenants)


@lru_cache(maxsize=4096)
def _plain(tenants: str) -> str:
    """That of callers who send none, which is nearly all of them."""
    return _derived(tenants, "")


def _derived(tenants: str, callers: str) -> str:
    return hmac.digest(tenants.encode(), callers.encode("utf-8", "surrogatepass"), hashlib.sha256).hex()
