"""API key authentication.

Only keyed hashes of keys are stored. A presented key is hashed and looked up. Because the hash is computed with a
secret, the lookup time reveals nothing about any key.
"""

from collections.abc import Mapping
from typing import Protocol

from headgate.model.units import TenantId
from headgate.wire.keys import KeyDigester

_SCHEME = b"bearer "
_SCHEME_BYTES = len(_SCHEME)


class KeyUnverified(Exception):
    """The key can currently be neither accepted nor rejected. The message gives the reason."""


class KeyDirectory(Protocol):
    """Keys that are not in the configuration file. All of them are kept in memory."""

    def find(self, digest: bytes) -> TenantId | None:
        """Returns the tenant of the key with this digest, or None if there is no such key. Raises `KeyUnverified`."""
        ...


class KeyRing:
    __slots__ = ("_anonymous", "_digester", "_directory", "_keys")

    def __init__(
        self,
        secret: bytes,
        keys: Mapping[bytes, TenantId],
        anonymous: TenantId | None,
        directory: KeyDirectory | None = None,
    ) -> None:
        self._digester = KeyDigester(secret) if secret else None
        self._keys = keys
        self._anonymous = anonymous
        self._directory = directory

    def tenant(self, authorization: bytes | None) -> TenantId | None:
        """Returns the tenant for an `Authorization` header, or None if the key is unknown. Raises `KeyUnverified`."""
        key = bearer_token(authorization)
        if not key:
            return self._anonymous
        # A presented key must be valid even if keys are optional: a mistyped key must not silently become the
        # anonymous tenant.
        known = self._digester.digest(key) if self._digester is not None else b""
        found = self._keys.get(known)
        if found is None and self._directory is not None:
            return self._directory.find(known)
        return found if found is not None or self._keys else self._anonymous


def bearer_token(authorization: bytes | None) -> str:
    if authorization is None or authorization[:_SCHEME_BYTES].lower() != _SCHEME:
        return ""
    return authorization[_SCHEME_BYTES:].strip().decode("latin-1")
