"""Login at an OpenID Connect provider, by the authorization code flow with PKCE (RFC 7636)."""

import base64
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import quote, urlencode

import msgspec

from headgate.identity.issuer_keys import IssuerKeys, IssuerUnavailable
from headgate.identity.operators import operator_name, roles_of
from headgate.identity.options import LoginOptions, OperatorTokenOptions
from headgate.identity.tokens import TokenCounts, TrustedIssuer, VerifiedToken, claim_text, claim_values, verified
from headgate.ports.admin_roles import Role
from headgate.ports.identity import InvalidToken, LoginUnavailable, TokenFault, UnknownTokenKey
from headgate.ports.tls import ClientTlsOptions

SendForm = Callable[[str, Mapping[str, str], Mapping[str, str], ClientTlsOptions | None], Awaitable[tuple[int, bytes]]]
"""Posts a form with headers to a URL and returns status and body. Raises `IssuerUnavailable`."""


class _TokenResponse(msgspec.Struct, frozen=True):
    id_token: str


class _TokenError(msgspec.Struct, frozen=True):
    error: str


class ProviderLogin:
    """Logins at one issuer. Implements `OperatorLogin`."""

    def __init__(
        self,
        keys: IssuerKeys,
        operators: OperatorTokenOptions,
        options: LoginOptions,
        counts: TokenCounts,
        send: SendForm,
        *,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.options = options
        self.issuer = keys.options.issuer
        self._keys = keys
        self._operators = operators
        self._counts = counts
        self._send = send
        self._now_s = now_s
        self._trusted = {self.issuer: TrustedIssuer(keys, (options.client_id,))}

    async def authorization_url(self, state: str, nonce: str, challenge: str) -> str:
        try:
            endpoint = (await self._keys.discover()).authorization_endpoint
        except IssuerUnavailable as problem:
            raise LoginUnavailable(str(problem)) from None
        asked = {
            "response_type": "code",
            "client_id": self.options.client_id,
            "redirect_uri": self.options.redirect_url,
            "scope": " ".join(self.options.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked, quote_via=quote)}"

    async def sign_in(self, code: str, verifier: str, nonce: str) -> tuple[str, Sequence[Role]]:
        token = await self._exchange(code, verifier)
        try:
            try:
                result = verified(token, self._trusted, self._now_s())
            except UnknownTokenKey as unknown:
                await unknown.reread()
                result = verified(token, self._trusted, self._now_s())
            self._check_id_token(result, nonce)
            name, roles = operator_name(result.claims, self._operators), roles_of(result.claims, self._operators)
        except InvalidToken as invalid:
            self._counts.reject(invalid)
            raise
        self._counts.accept(self._operators.issuer)
        return name, roles

    def _check_id_token(self, result: VerifiedToken, nonce: str) -> None:
        """Checks the claims that only ID tokens have."""
        given = claim_text(result.claims, "nonce") or ""
        if not hmac.compare_digest(given.encode(), nonce.encode()):
            raise InvalidToken(TokenFault.CLAIMS, "the nonce is not that of the login")
        party = claim_text(result.claims, "azp")
        several = len(claim_values(result.claims, "aud")) > 1
        if (several or "azp" in result.claims) and party != self.options.client_id:
            raise InvalidToken(TokenFault.AUDIENCE, f"the ID token was issued to {party!r}")

    async def _exchange(self, code: str, verifier: str) -> str:
        """Exchanges the code for an ID token."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.options.redirect_url,
            "code_verifier": verifier,
        }
        headers: dict[str, str] = {}
        try:
            found = await self._keys.discover()
            if self.options.client_secret is None:
                form["client_id"] = self.options.client_id
            elif "client_secret_basic" in found.token_endpoint_auth_methods_supported:
                headers["authorization"] = _basic(self.options.client_id, self.options.client_secret)
            else:
                form |= {"client_id": self.options.client_id, "client_secret": self.options.client_secret}
            status, body = await self._send(found.token_endpoint, form, headers, self._keys.options.tls)
        except IssuerUnavailable as problem:
            raise LoginUnavailable(str(problem)) from None
        if status != 200:
            raise InvalidToken(TokenFault.MALFORMED, f"the issuer rejected the code: {status} {_error(body)}")
        try:
            return msgspec.json.decode(body, type=_TokenResponse).id_token
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise InvalidToken(TokenFault.MALFORMED, "the issuer's response contains no ID token") from None


def _basic(client_id: str, secret: str) -> str:
    # Both parts are form-encoded first (RFC 6749, section 2.3.1).
    pair = f"{quote(client_id, safe='')}:{quote(secret, safe='')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _error(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_TokenError).error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return "without an error code"
