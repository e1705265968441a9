"""Verification of signed tokens (JSON Web Tokens) and the tenants that they name.

A token is trusted only because of a key that its issuer publishes. The header's `alg` must be on the issuer's list,
`kid` only selects one of the published keys, and every other header field, such as `jku` and `jwk`, is ignored.
The claims are checked after the signature. Verified tokens are cached by their hash, so that further requests with the
same token need only a lookup.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from headgate.identity.issuer_keys import IssuerKeys
from headgate.identity.key_set import KeySet, decode_json, decoded, verifies
from headgate.identity.options import CLAIM
from headgate.model.units import SECOND, TenantId
from headgate.ports.identity import InvalidToken, TokenFault, UnknownTokenKey

TOKEN_BYTES_MAX: Final = 16 * 1024
CACHED_TOKENS_MAX: Final = 10_000
"""Maximum number of verified tokens kept. If there are more, the oldest is verified again."""
_TYPES: Final = (None, "jwt", "at+jwt", "application/at+jwt")
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_STEP: Final = re.compile(_NAME)
_PATH: Final = re.compile(rf"{_NAME}(?:/{_NAME}){{0,2}}")
_TIME_MAX: Final = 2**53

Claims = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """A token with a valid signature and valid claims."""

    issuer: IssuerKeys
    keys: KeySet
    """The keys that it was verified with."""
    claims: Claims
    expires_at_s: float


class TrustedIssuer(NamedTuple):
    """An issuer, and the audience and claims that its tokens need for one purpose."""

    issuer: IssuerKeys
    audience: tuple[str, ...]
    required_claims: tuple[tuple[str, tuple[str, ...]], ...] = ()


def verified(token: str, issuers: Mapping[str, TrustedIssuer], now_s: float) -> VerifiedToken:
    """Verifies a token of one of the issuers, by the claim `iss`. Raises `InvalidToken`."""
    header, claims, signed, signature = _parts(token)
    trusted = issuers.get(claim_text(claims, "iss") or "")
    if trusted is None:
        raise InvalidToken(TokenFault.UNKNOWN_ISSUER, f"issuer {claims.get('iss')!r} is not configured for this use")
    keys = _check_signature(header, signed, signature, trusted.issuer)
    return VerifiedToken(trusted.issuer, keys, claims, _check_claims(claims, trusted, now_s))


def _parts(token: str) -> tuple[Mapping[str, Any], Claims, bytes, bytes]:
    if len(token) > TOKEN_BYTES_MAX:
        raise InvalidToken(TokenFault.MALFORMED, f"{len(token)} bytes exceed the limit of {TOKEN_BYTES_MAX}")
    signed, _, end = token.rpartition(".")
    start, _, middle = signed.partition(".")
    header, payload, signature = decoded(start), decoded(middle), decoded(end)
    if header is None or payload is None or signature is None:
        raise InvalidToken(TokenFault.MALFORMED, "not three base64url parts")
    head, claims = decode_json(header), decode_json(payload)
    if head is None or claims is None:
        raise InvalidToken(TokenFault.MALFORMED, "header or claims are not a JSON object")
    return head, claims, signed.encode("ascii"), signature


def _check_signature(header: Mapping[str, Any], signed: bytes, signature: bytes, issuer: IssuerKeys) -> KeySet:
    """Returns the keys that the signature was checked with."""
    algorithm, kind, kid = header.get("alg"), header.get("typ"), header.get("kid")
    if "crit" in header or (kind.lower() if isinstance(kind, str) else kind) not in _TYPES:
        raise InvalidToken(TokenFault.MALFORMED, f"critical extension, or type {kind!r} is not JWT")
    if not isinstance(algorithm, str) or algorithm not in issuer.options.algorithms:
        allowed = ", ".join(issuer.options.algorithms)
        raise InvalidToken(TokenFault.ALGORITHM, f"algorithm {algorithm!r} is not one of {allowed}")
    if kid is not None and not isinstance(kid, str):
        raise InvalidToken(TokenFault.MALFORMED, "the key ID is not a text")
    keys = issuer.keys
    key = None if keys is None else keys.find(algorithm, kid)
    if keys is None or key is None:
        if issuer.problem is not None:
            # The token may be valid. The keys are read again in the background.
            raise InvalidToken(TokenFault.UNVERIFIED, f"key {kid!r} of an unreachable issuer: {issuer.problem}")
        raise UnknownTokenKey(TokenFault.UNKNOWN_KEY, f"the issuer has no {algorithm} key {kid!r}", issuer.reread)
    if not verifies(key, algorithm, signed, signature):
        raise InvalidToken(TokenFault.SIGNATURE, f"the signature does not match key {kid!r}")
    return keys


def _check_claims(claims: Claims, trusted: TrustedIssuer, now_s: float) -> float:
    """Returns the time from which the token is no longer accepted."""
    skew_s = trusted.issuer.options.clock_skew_ns / SECOND
    expires_at_s = _time(claims, "exp")
    if expires_at_s is None:
        raise InvalidToken(TokenFault.CLAIMS, "the claim exp is missing")
    if expires_at_s + skew_s <= now_s:
        raise InvalidToken(TokenFault.EXPIRED, f"expired {now_s - expires_at_s:.0f} s ago")
    for name in ("nbf", "iat"):
        starts_at_s = _time(claims, name)
        if starts_at_s is not None and starts_at_s - skew_s > now_s:
            raise InvalidToken(TokenFault.NOT_YET_VALID, f"{name} is {starts_at_s - now_s:.0f} s in the future")
    if claim_values(claims, "aud").isdisjoint(trusted.audience):
        wanted = " or ".join(trusted.audience)
        raise InvalidToken(TokenFault.AUDIENCE, f"audience {claims.get('aud')!r} is not {wanted}")
    for name, accepted in trusted.required_claims:
        if claim_values(claims, name).isdisjoint(accepted):
            raise InvalidToken(TokenFault.CLAIMS, f"the claim {name} has none of the required values")
    return expires_at_s + skew_s


def claim_values(claims: Claims, name: str) -> set[str]:
    """Returns the values of a claim, which may be a list. Values of other types are ignored."""
    value = claims.get(name)
    if name == "scope" and isinstance(value, str):
        # Scopes are one string, separated by spaces.
        value = value.split(" ")
    given = cast("list[object]", value) if isinstance(value, list) else [value]
    return {str(each).lower() if isinstance(each, bool) else each for each in given if isinstance(each, str | bool)}


def _time(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _TIME_MAX:
        raise InvalidToken(TokenFault.CLAIMS, f"the claim {name} is not a time")
    return value


def claim_text(claims: Claims, name: str) -> str | None:
    """Returns the value of a claim if it is a string."""
    value = claims.get(name)
    return value if isinstance(value, str) else None


def tenant_of(claims: Claims, template: str) -> TenantId:
    """Returns the tenant that the claims name. Raises `InvalidToken`.

    A claim can supply one name in a tenant's path, or the whole path if the template is only this claim. It can
    therefore never lead out of the fixed part of the template.
    """
    allowed = _PATH if CLAIM.fullmatch(template) else _STEP

    def value(placeholder: re.Match[str]) -> str:
        given = claim_text(claims, placeholder[1])
        if given is None or allowed.fullmatch(given) is None:
            raise InvalidToken(TokenFault.CLAIMS, f"the claim {placeholder[1]} is not the name of a tenant: {given!r}")
        return given

    return TenantId(CLAIM.sub(value, template))


class _CachedToken(NamedTuple):
    tenant: TenantId
    issuer: IssuerKeys
    keys: KeySet
    """The issuer's keys when the token was verified."""
    expires_at_s: float


class TokenCounts:
    """Numbers of accepted and rejected tokens, kept across reloads."""

    def __init__(self, on_rejected: Callable[[TokenFault, str], None]) -> None:
        """`on_rejected` is called with the reason for each rejected token."""
        self.accepted: dict[str, int] = {}
        """Requests with an accepted token, by name of the issuer."""
        self.rejected = dict.fromkeys(TokenFault, 0)
        self._on_rejected = on_rejected

    def accept(self, issuer: str) -> None:
        self.accepted[issuer] = self.accepted.get(issuer, 0) + 1

    def reject(self, invalid: InvalidToken) -> None:
        self.rejected[invalid.fault] += 1
        self._on_rejected(invalid.fault, str(invalid))


class TokenTenants:
    """Tenants of the callers' tokens. Implements `CallerTokens`."""

    def __init__(
        self,
        issuers: Iterable[IssuerKeys],
        counts: TokenCounts,
        *,
        now_s: Callable[[], float] = time.time,
        cached_max: int = CACHED_TOKENS_MAX,
    ) -> None:
        self._issuers = {
            options.issuer: TrustedIssuer(each, options.audience, options.required_claims)
            for each in issuers
            if (options := each.options).tenant is not None
        }
        self._counts = counts
        self._now_s = now_s
        self._cached_max = cached_max
        self._cached: dict[bytes, _CachedToken] = {}
        self.is_known: Callable[[TenantId], bool] = lambda _: False
        """Whether a tenant exists. Raises `InvalidToken` if that cannot be determined at present."""

    def tenant(self, token: str) -> TenantId:
        try:
            return self._tenant(token)
        except UnknownTokenKey:
            raise  # Not rejected yet.
        except InvalidToken as invalid:
            self._counts.reject(invalid)
            raise

    async def reread_tenant(self, token: str, unknown: UnknownTokenKey) -> TenantId:
        await unknown.reread()
        try:
            return self._tenant(token)
        except InvalidToken as invalid:
            self._counts.reject(invalid)
            raise

    def _tenant(self, token: str) -> TenantId:
        # The cache does not contain the tokens themselves.
        name = hashlib.sha256(token.encode("latin-1")).digest()
        found, now_s = self._cached.get(name), self._now_s()
        if found is None or found.expires_at_s <= now_s or found.issuer.keys is not found.keys:
            self._cached.pop(name, None)
            result = verified(token, self._issuers, now_s)
            tenant = tenant_of(result.claims, result.issuer.options.tenant or "")
            found = _CachedToken(tenant, result.issuer, result.keys, result.expires_at_s)
            if len(self._cached) >= self._cached_max:
                del self._cached[next(iter(self._cached))]
            self._cached[name] = found
        # Tenants can be removed at any time, so this is not cached.
        if not self.is_known(found.tenant):
            raise InvalidToken(TokenFault.UNKNOWN_TENANT, f"tenant {found.tenant!r} does not exist")
        self._counts.accept(found.issuer.options.name)
        return found.tenant

    def __len__(self) -> int:
        return len(self._cached)
