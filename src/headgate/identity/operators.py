"""Operators who authenticate with tokens, and the roles that their claims grant."""

import time
from collections.abc import Callable
from typing import Final

from headgate.identity.issuer_keys import IssuerKeys
from headgate.identity.options import OperatorTokenOptions
from headgate.identity.tokens import Claims, TokenCounts, TrustedIssuer, claim_text, claim_values, verified
from headgate.ports.admin_roles import Operator, Role, permissions_of
from headgate.ports.identity import InvalidToken, TokenFault, UnknownTokenKey

_NAME_CHARS_MAX: Final = 200


class TokenOperators:
    """Operators of one issuer. Implements `OperatorTokens`."""

    def __init__(
        self,
        issuer: IssuerKeys,
        options: OperatorTokenOptions,
        counts: TokenCounts,
        *,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._trusted = {issuer.options.issuer: TrustedIssuer(issuer, options.audience)}
        self._counts = counts
        self._now_s = now_s

    def operator(self, token: str) -> Operator:
        try:
            return self._operator(token)
        except UnknownTokenKey:
            raise  # Not rejected yet.
        except InvalidToken as invalid:
            self._counts.reject(invalid)
            raise

    async def reread_operator(self, token: str, unknown: UnknownTokenKey) -> Operator:
        await unknown.reread()
        try:
            return self._operator(token)
        except InvalidToken as invalid:
            self._counts.reject(invalid)
            raise

    def _operator(self, token: str) -> Operator:
        result = verified(token, self._trusted, self._now_s())
        permissions = permissions_of(roles_of(result.claims, self._options))
        operator = Operator(operator_name(result.claims, self._options), permissions, result.expires_at_s)
        self._counts.accept(self._options.issuer)
        return operator


def operator_name(claims: Claims, options: OperatorTokenOptions) -> str:
    """Returns the name for the audit log. It starts with the issuer, so it cannot be the name of an operator key."""
    name = claim_text(claims, options.name_claim)
    if not name or len(name) > _NAME_CHARS_MAX or not name.isprintable():
        raise InvalidToken(TokenFault.CLAIMS, f"the claim {options.name_claim} is not the name of an operator")
    return f"{options.issuer}:{name}"


def roles_of(claims: Claims, options: OperatorTokenOptions) -> tuple[Role, ...]:
    """Returns the roles that the claims grant."""
    given = claim_values(claims, options.role_claim)
    return tuple(role for role, values in options.roles if not given.isdisjoint(values))
