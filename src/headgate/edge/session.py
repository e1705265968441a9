"""The session that a request belongs to, as named by its caller.

The name is hashed together with the tenant, so that tenants cannot affect each other's sessions and the scheduler does
not see identifiers of users.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from headgate.model.units import TenantId
from headgate.wire.request_body import RequestBody

SESSION_HEADER: Final = b"x-session-id"
SESSION_BYTES_MAX: Final = 256
"""Maximum length of a session name. Longer ones are ignored."""
_HASH_BYTES: Final = 8


def session_name(headers: Mapping[bytes, bytes], body: RequestBody, fields: tuple[str, ...]) -> bytes:
    """Returns the session in the header or in the first of these body fields that names one. Empty if there is none."""
    name = headers.get(SESSION_HEADER)
    if name is None:
        texts = (body.short_text(each, SESSION_BYTES_MAX) for each in fields)
        name = next(filter(None, texts), "").encode()
    return name if len(name) <= SESSION_BYTES_MAX else b""


def session_hash(name: bytes, tenant: TenantId) -> str:
    """Returns the session as the scheduler knows it."""
    return blake2b(tenant.encode() + b"\0" + name, digest_size=_HASH_BYTES).hexdigest() if name else ""
