"""Schema of the issuers whose tokens are accepted (`identity`)."""

from typing import Annotated

from msgspec import Meta

from headgate.config.pool_schema import EngineTlsSection
from headgate.config.section import Section
from headgate.config.setting_types import DurationOrZero, PositiveDuration
from headgate.identity.options import IssuerOptions

_ISSUER = IssuerOptions("", "", (), "")


class IssuerSection(Section, frozen=True):
    issuer: Annotated[str, Meta(extra={"next": "set the value of the claim iss in the issuer's tokens, an https URL"})]
    audience: Annotated[list[str], Meta(extra={"next": "list the values of the claim aud that mean this gateway"})]
    tenant: Annotated[
        str, Meta(extra={"next": "set the tenant of the tokens, such as acme, or acme/{team} for the claim team"})
    ]
    jwks_url: str | None = None
    algorithms: list[str] | None = None
    required_claims: dict[str, list[str]] = {}
    clock_skew: DurationOrZero = _ISSUER.clock_skew_ns
    refresh_interval: PositiveDuration = _ISSUER.refresh_interval_ns
    key_retention: PositiveDuration = _ISSUER.key_retention_ns
    tls: EngineTlsSection | None = None


class IdentitySection(Section, frozen=True):
    issuers: Annotated[
        dict[str, IssuerSection], Meta(extra={"next": "define at least one issuer, by a name of your choice"})
    ]
