"""Options for token issuers and operators' tokens, and the rules for URLs and algorithms."""

import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from headgate.model.units import MINUTE, SECOND, Duration
from headgate.ports.admin_roles import Role
from headgate.ports.tls import ClientTlsOptions

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Signature algorithms that an issuer may use. All are asymmetric."""
CLAIM: Final = re.compile(r"\{([^{}]+)\}")
"""Placeholder for a claim in a tenant template."""
_PLAIN: Final = re.compile(r"[\x21-\x7e]{1,2000}")


@dataclass(frozen=True, slots=True)
class IssuerOptions:
    """An issuer whose tokens are accepted."""

    name: str
    """Name in the configuration, for metrics and the log."""
    issuer: str
    """Expected value of the claim `iss`."""
    audience: tuple[str, ...] = ()
    """A caller's token must be for one of these audiences."""
    tenant: str | None = None
    """Tenant of the tokens. `{NAME}` stands for a claim. None if callers cannot use the issuer's tokens."""
    jwks_url: str | None = None
    """Address of the issuer's keys. None to discover it."""
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    required_claims: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Claims that a caller's token must have, each with the accepted values."""
    clock_skew_ns: Duration = Duration(30 * SECOND)
    """Maximum difference between the clocks of the issuer and the gateway."""
    refresh_interval_ns: Duration = Duration(10 * MINUTE)
    """Time between two reads of the issuer's keys."""
    key_retention_ns: Duration = Duration(24 * 60 * MINUTE)
    """How long keys stay in use while the issuer is unreachable."""
    tls: ClientTlsOptions | None = None
    """How the issuer's server is verified. None for the system's authorities."""


@dataclass(frozen=True, slots=True)
class LoginOptions:
    """Browser login for operators."""

    client_id: str
    redirect_url: str
    """Address of `/login/callback` as the browser sees it."""
    client_secret: str | None = field(default=None, repr=False)
    """None for a public client."""
    scopes: tuple[str, ...] = ("openid", "profile")
    session_lifetime_ns: Duration = Duration(8 * 60 * MINUTE)


@dataclass(frozen=True, slots=True)
class OperatorTokenOptions:
    """Tokens of one issuer that are accepted on the admin listener, and the roles that they grant."""

    issuer: str
    """Name of the issuer in the configuration."""
    audience: tuple[str, ...]
    """An operator's token must be for one of these audiences."""
    roles: tuple[tuple[Role, tuple[str, ...]], ...]
    """Values of the claim `role_claim` that grant each role."""
    role_claim: str = "groups"
    name_claim: str = "sub"
    """Claim with the operator's name for the audit log."""
    login: LoginOptions | None = None
    """None if operators cannot log in with a browser."""


def is_secure_url(text: str) -> bool:
    """Whether the text is an HTTPS URL without credentials or a fragment. On loopback, HTTP is allowed too."""
    try:
        url = urlsplit(text)
        host = url.hostname
        _ = url.port
    except ValueError:
        return False
    if not host or "@" in url.netloc or "#" in text or _PLAIN.fullmatch(text) is None:
        return False
    return url.scheme == "https" or (url.scheme == "http" and _is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
