"""Interfaces for verifying callers' and operators' tokens, which external issuers sign."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from headgate.model.units import TenantId
from headgate.ports.admin_roles import Operator, Role


class TokenFault(StrEnum):
    """Why a token was rejected, for the log and for metrics. Callers learn less."""

    MALFORMED = "malformed"
    ALGORITHM = "algorithm"
    UNKNOWN_ISSUER = "unknown_issuer"
    UNKNOWN_KEY = "unknown_key"
    UNVERIFIED = "unverified"
    """The token may be valid, but the issuer's keys or the tenants are not known at present."""
    SIGNATURE = "signature"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    AUDIENCE = "audience"
    CLAIMS = "claims"
    UNKNOWN_TENANT = "unknown_tenant"


class InvalidToken(Exception):
    """The token is rejected. The message is for the log, because it may contain text from the token."""

    def __init__(self, fault: TokenFault, detail: str) -> None:
        super().__init__(detail)
        self.fault = fault


class UnknownTokenKey(InvalidToken):
    """None of the issuer's known keys can have signed the token, but the issuer may have added one."""

    def __init__(self, fault: TokenFault, detail: str, reread: Callable[[], Awaitable[None]]) -> None:
        """`reread` reads the issuer's keys again, at a limited rate."""
        super().__init__(fault, detail)
        self.reread = reread


@dataclass(frozen=True, slots=True)
class IssuerStats:
    """State of an issuer's keys."""

    name: str
    keys: int
    age_s: float
    """Time since the keys were last read; infinite if they never were."""
    failures: int
    """Number of failed reads."""


class CallerTokens(Protocol):
    """Tokens that are accepted in addition to API keys."""

    def tenant(self, token: str) -> TenantId:
        """Returns the tenant that a token names.

        Raises `InvalidToken`, and `UnknownTokenKey` if `reread_tenant` may find the token's key.
        """
        ...

    async def reread_tenant(self, token: str, unknown: UnknownTokenKey) -> TenantId:
        """Reads the issuer's keys again and returns the tenant. Raises `InvalidToken`."""
        ...


class OperatorTokens(Protocol):
    """Tokens that are accepted on the admin listener in addition to operator keys."""

    def operator(self, token: str) -> Operator:
        """Returns the operator that a token names, who may have no permission.

        Raises `InvalidToken`, and `UnknownTokenKey` if `reread_operator` may find the token's key.
        """
        ...

    async def reread_operator(self, token: str, unknown: UnknownTokenKey) -> Operator:
        """Reads the issuer's keys again and returns the operator. Raises `InvalidToken`."""
        ...


class LoginUnavailable(Exception):
    """The identity provider did not respond as expected. The message gives the reason."""


class LoginSettings(Protocol):
    """Settings of the browser login."""

    @property
    def client_id(self) -> str: ...
    @property
    def redirect_url(self) -> str: ...
    @property
    def session_lifetime_ns(self) -> int: ...


class OperatorLogin(Protocol):
    """Logs operators in at an identity provider."""

    @property
    def issuer(self) -> str: ...
    @property
    def options(self) -> LoginSettings: ...

    async def authorization_url(self, state: str, nonce: str, challenge: str) -> str:
        """Returns the address at which a login begins. Raises `LoginUnavailable`."""
        ...

    async def sign_in(self, code: str, verifier: str, nonce: str) -> tuple[str, Sequence[Role]]:
        """Exchanges a code and returns the operator's name and roles. Raises `LoginUnavailable` and `InvalidToken`."""
        ...
