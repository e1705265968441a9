"""Whose key is this?

Keys are known only by their keyed hash. The hash of what was presented is looked up; since it
is computed under a secret, the time of the lookup tells nothing about any key.
"""

from collections.abc import Mapping
from typing import Protocol

from headgate.model.units import TenantId
from headgate.wire.keys import digest

_SCHEME = b"bearer "


class Unverified(Exception):
    """Whether this is a key cannot be said at the moment, so nobody may call it wrong; the message says why."""


class MoreKeys(Protocol):
    """Keys that stand elsewhere than in the configuration, all in memory."""

    def find(self, known: bytes) -> TenantId | None:
        """Whose key this is the digest of; None if certainly nobody's. Raises `Unverified`."""
        ...


class KeyRing:
    __slots__ = ("_anonymous", "_keys", "_more", "_secret")

    def __init__(
        self,
        secret: bytes,
        keys: Mapping[bytes, TenantId],
        anonymous: TenantId | None,
        more: MoreKeys | None = None,
    ) -> None:
        self._secret = secret
        self._keys = keys
        self._anonymous = anonymous
        self._more = more

    def tenant(self, authorization: bytes | None) -> TenantId | None:
        """The tenant of an `Authorization` header, or None if nobody is known by it. Raises `Unverified`."""
        key = bearer(authorization)
        if not key:
            return self._anonymous
        # A key that is presented must be a known one, even where none is needed: a typing
        # error should not silently turn into somebody else's account.
        known = digest(self._secret, key) if self._secret else b""
        found = self._keys.get(known)
        if found is None and self._more is not None:
            return self._more.find(known)
        return found if found is not None or self._keys else self._anonymous


def bearer(authorization: bytes | None) -> str:
    if authorization is None or authorization[: len(_SCHEME)].lower() != _SCHEME:
        return ""
    return authorization[len(_SCHEME) :].strip().decode("latin-1")
