"""Schema of the token issuers and of operators' tokens (`identity`)."""

from typing import Annotated

from msgspec import Meta

from headgate.config.pool_schema import EngineTlsSection
from headgate.config.section import Section
from headgate.config.setting_types import DurationOrZero, OperatorRoles, PositiveDuration, Secret
from headgate.identity.options import IssuerOptions, LoginOptions, OperatorTokenOptions

_ISSUER = IssuerOptions("", "")
_LOGIN = LoginOptions("", "")
_OPERATORS = OperatorTokenOptions("", (), ())


class IssuerSection(Section, frozen=True):
    issuer: Annotated[str, Meta(extra={"next": "set the value of the claim iss in the issuer's tokens, an https URL"})]
    audience: list[str] = []
    tenant: str | None = None
    jwks_url: str | None = None
    algorithms: list[str] | None = None
    required_claims: dict[str, list[str]] = {}
    clock_skew: DurationOrZero = _ISSUER.clock_skew_ns
    refresh_interval: PositiveDuration = _ISSUER.refresh_interval_ns
    key_retention: PositiveDuration = _ISSUER.key_retention_ns
    tls: EngineTlsSection | None = None


class LoginSection(Section, frozen=True):
    client_id: Annotated[str, Meta(extra={"next": "set the ID of the client at the identity provider"})]
    redirect_url: Annotated[
        str,
        Meta(extra={"next": "set the address of /login/callback, such as https://headgate.example.com/login/callback"}),
    ]
    client_secret: Secret | None = None
    scopes: list[str] | None = None
    session_lifetime: PositiveDuration = _LOGIN.session_lifetime_ns


class OperatorTokensSection(Section, frozen=True):
    issuer: Annotated[str, Meta(extra={"next": "set the name of one of identity.issuers"})]
    audience: Annotated[
        list[str], Meta(extra={"next": "list the values of the claim aud that identify the admin listener"})
    ]
    roles: OperatorRoles
    role_claim: str = _OPERATORS.role_claim
    name_claim: str = _OPERATORS.name_claim
    login: LoginSection | None = None


class IdentitySection(Section, frozen=True):
    issuers: Annotated[
        dict[str, IssuerSection], Meta(extra={"next": "define at least one issuer, by a name of your choice"})
    ]
    operators: OperatorTokensSection | None = None
