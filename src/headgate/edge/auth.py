"""Whose key is this?

Keys are known only by their keyed hash. The hash of what was presented is looked up; since it
is computed under a secret, the time of the lookup tells nothing about any key.
"""

from collections.abc import Mapping

from headgate.model.units import TenantId
from headgate.wire.keys import digest

_SCHEME = b"bearer "


class KeyRing:
    __slots__ = ("_anonymous", "_keys", "_secret")

    def __init__(self, secret: bytes, keys: Mapping[bytes, TenantId], anonymous: TenantId | None) -> None:
        self._secret = secret
        self._keys = keys
        self._anonymous = anonymous

    def tenant(self, authorization: bytes | None) -> TenantId | None:
        """The tenant of an `Authorization` header, or None if nobody is known by it."""
        key = _bearer(authorization)
        if not key:
            return self._anonymous
        # A key that is presented must be a known one, even where none is needed: a typing
        # error should not silently turn into somebody else's account.
        found = self._keys.get(digest(self._secret, key)) if self._secret else None
        return found if found is not None or self._keys else self._anonymous


def _bearer(authorization: bytes | None) -> str:
    if authorization is None or authorization[: len(_SCHEME)].lower() != _SCHEME:
        return ""
    return authorization[len(_SCHEME) :].strip().decode("latin-1")
