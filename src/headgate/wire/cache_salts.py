"""Cache salts, which isolate tenants' cached prefixes from each other.

An engine that supports salts shares cached prefixes only between requests with the same salt. A client that could use
another tenant's salt could infer that tenant's prompts from response times. The salt sent to the engine is therefore
derived from a secret per-tenant salt and the client's own salt. Clients can still isolate their own users.
"""

import hashlib
import hmac
from functools import lru_cache


def tenant_salt(secret: bytes, tenant: str) -> str:
    """Returns the tenant's salt, which is the same in every process that uses this secret."""
    return hmac.digest(secret, b"cache_salt:" + tenant.encode("utf-8", "surrogatepass"), hashlib.sha256).hex()


def engine_salt(tenant: str, caller: str | None) -> str:
    """Returns the salt for the engine.

    All salts have the same length, so that no suffix added by an engine can make two salts equal.
    """
    return _derived(tenant, caller) if caller else _tenant_only(tenant)


@lru_cache(maxsize=4096)
def _tenant_only(tenant: str) -> str:
    """Returns the engine salt for requests without a client salt, which is the most common case."""
    return _derived(tenant, "")


def _derived(tenant: str, caller: str) -> str:
    return hmac.digest(tenant.encode(), caller.encode("utf-8", "surrogatepass"), hashlib.sha256).hex()
