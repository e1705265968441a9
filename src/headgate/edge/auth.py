"""Authentication of callers by API keys and by signed tokens.

Only keyed hashes of keys are stored. A presented key is hashed and looked up. Because the hash is computed with a
secret, the lookup time reveals nothing about any key. Tokens are verified by `headgate.identity`.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Protocol

from headgate.model.units import TenantId
from headgate.ports.identity import CallerTokens, InvalidToken, TokenFault, UnknownTokenKey
from headgate.wire.keys import KeyDigester

_SCHEME = b"bearer "
_SCHEME_BYTES = len(_SCHEME)
_JSON_OBJECT = "eyJ"
"""Beginning of every JSON object in base64url."""
_NOT_OURS = (TokenFault.MALFORMED, TokenFault.UNKNOWN_ISSUER)
"""Faults of texts that only look like a token of a configured issuer."""


class KeyUnverified(Exception):
    """The key can currently be neither accepted nor rejected. The message gives the reason."""


class KeyDirectory(Protocol):
    """Keys that are not in the configuration file. All of them are kept in memory."""

    def find(self, digest: bytes) -> TenantId | None:
        """Returns the tenant of the key with this digest, or None if there is no such key. Raises `KeyUnverified`."""
        ...


class CallerKeys(Protocol):
    """Everything that authenticates a caller."""

    def tenant(self, authorization: bytes | None) -> TenantId | None:
        """Returns the tenant for an `Authorization` header, or None if the key is unknown.

        Raises `KeyUnverified`, `InvalidToken` and `UnknownTokenKey`.
        """
        ...

    async def reread_tenant(self, authorization: bytes | None, unknown: UnknownTokenKey) -> TenantId:
        """Like `tenant`, after the keys of the token's issuer have been read again."""
        ...


class SecretUse:
    """Number of keys that one of the key secrets verified, and the time of the last one."""

    __slots__ = ("keys_verified", "last_used_s")

    def __init__(self) -> None:
        self.keys_verified = 0
        self.last_used_s = 0.0
        """Unix time of the last use; 0 before the first one."""


def secret_uses_status(uses: Mapping[str, SecretUse]) -> list[dict[str, object]]:
    """Returns the uses of the key secrets, by fingerprint, in the form used by /status."""
    return [
        {
            "position": position,
            "fingerprint": fingerprint,
            "keys_verified": use.keys_verified,
            "last_used": datetime.fromtimestamp(use.last_used_s, UTC).isoformat(timespec="seconds")
            if use.last_used_s
            else None,
        }
        for position, (fingerprint, use) in enumerate(uses.items())
    ]


class KeyRing:
    __slots__ = ("_anonymous", "_digesters", "_directory", "_keys", "_unknown")

    def __init__(
        self,
        secrets: Mapping[bytes, SecretUse],
        keys: Mapping[bytes, TenantId],
        anonymous: TenantId | None,
        directory: KeyDirectory | None = None,
        *,
        has_tokens: bool = False,
    ) -> None:
        """A key may be hashed with any of the `secrets`, and their uses are counted. `has_tokens` is true if tokens
        are accepted beside keys.
        """
        self._digesters = tuple((KeyDigester(secret), use) for secret, use in secrets.items())
        self._keys = keys
        self._anonymous = anonymous
        self._directory = directory
        self._unknown = None if keys or directory is not None or has_tokens else anonymous
        """Tenant of an unknown key."""

    def tenant(self, authorization: bytes | None) -> TenantId | None:
        """Returns the tenant for an `Authorization` header, or None if the key is unknown. Raises `KeyUnverified`."""
        key = bearer_token(authorization)
        if not key:
            return self._anonymous
        # A presented key must be valid even if keys are optional: a mistyped key must not silently become the
        # anonymous tenant.
        unverified: KeyUnverified | None = None
        for digester, use in self._digesters:
            try:
                found = self._find(digester.digest(key))
            except KeyUnverified as error:
                # The file may contain the key, hashed with another secret.
                unverified = error
                continue
            if found is not None:
                use.keys_verified += 1
                use.last_used_s = time.time()
                return found
        if unverified is not None:
            raise unverified
        return self._unknown

    async def reread_tenant(self, authorization: bytes | None, unknown: UnknownTokenKey) -> TenantId:
        raise unknown  # Keys have no issuer.

    def _find(self, known: bytes) -> TenantId | None:
        found = self._keys.get(known)
        if found is None and self._directory is not None:
            return self._directory.find(known)
        return found


class TokenKeyRing:
    """Accepts signed tokens beside the keys of a key ring. Used only if token issuers are configured."""

    __slots__ = ("_keys", "_tokens")

    def __init__(self, keys: KeyRing, tokens: CallerTokens) -> None:
        self._keys = keys
        self._tokens = tokens

    def tenant(self, authorization: bytes | None) -> TenantId | None:
        token = bearer_token(authorization)
        if not looks_like_token(token):
            return self._keys.tenant(authorization)
        try:
            return self._tokens.tenant(token)
        except InvalidToken as invalid:
            # A key may have any text, also that of a token of another issuer.
            if invalid.fault in _NOT_OURS and (found := self._keys.tenant(authorization)) is not None:
                return found
            raise

    async def reread_tenant(self, authorization: bytes | None, unknown: UnknownTokenKey) -> TenantId:
        return await self._tokens.reread_tenant(bearer_token(authorization), unknown)


def looks_like_token(text: str) -> bool:
    """Whether a text has the form of a signed token. A key may have it too."""
    return text.startswith(_JSON_OBJECT) and text.count(".") == 2


def bearer_token(authorization: bytes | None) -> str:
    if authorization is None or authorization[:_SCHEME_BYTES].lower() != _SCHEME:
        return ""
    return authorization[_SCHEME_BYTES:].strip().decode("latin-1")
