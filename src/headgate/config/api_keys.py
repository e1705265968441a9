"""Client API keys, and the tenant of requests without a key."""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from types import MappingProxyType

from headgate.config.problems import ConfigReport
from headgate.config.schema import ConfigFile
from headgate.config.schema_reader import suggestion
from headgate.model.units import TenantId
from headgate.wire.keys import parse_digest

# `headgate keys secret` generates a longer one. A shorter secret was probably typed by hand.
SECRET_LENGTH_MIN = 16
SECRETS_MAX = 4
"""Maximum number of key secrets. Every unknown key is hashed with each of them."""


@dataclass(frozen=True, slots=True)
class CallerAuth:
    key_secrets: tuple[bytes, ...]
    keys: Mapping[bytes, TenantId]
    anonymous_tenant: TenantId | None


def caller_auth(file: ConfigFile, report: ConfigReport) -> CallerAuth:
    keys = _keys(file, report)
    _check_secret(file, report)
    _check_anonymous(file, report)
    _check_reachable(file, report)
    return CallerAuth(
        key_secrets=tuple(each.encode() for each in file.key_secret),
        keys=MappingProxyType(keys),
        anonymous_tenant=None if file.anonymous_tenant is None else TenantId(file.anonymous_tenant),
    )


def _keys(file: ConfigFile, report: ConfigReport) -> dict[bytes, TenantId]:
    owners: dict[bytes, TenantId] = {}
    for name, tenant in file.tenants.items():
        for number, text in enumerate(tenant.keys):
            place = ("tenants", name, "keys", number)
            digest = parse_digest(text)
            if digest is None:
                problem = "is not a key hash (hmac-sha256: and 64 hexadecimal digits); "
                report.add_problem(place, problem + "`headgate keys hash` computes one")
            elif digest in owners:
                report.add_problem(place, f'is already a key of tenant "{owners[digest]}"; remove one of the two')
            else:
                owners[digest] = TenantId(name)
    return owners


def _check_secret(file: ConfigFile, report: ConfigReport) -> None:
    place = ("key_secret",)
    with_keys = next((name for name, tenant in file.tenants.items() if tenant.keys), None)
    if not file.key_secret and with_keys is not None:
        problem = f'missing, but the keys of tenant "{with_keys}" are hashed with it; '
        report.add_problem(
            place, problem + "set it to ${HEADGATE_KEY_SECRET} and export the output of `headgate keys secret`"
        )
    elif not file.key_secret and (file.database is not None or file.admin_keys):
        problem = "missing, but the keys in the database and the operator keys are hashed with it; "
        report.add_problem(
            place, problem + "set it to ${HEADGATE_KEY_SECRET} and export the output of `headgate keys secret`"
        )
    elif len(file.key_secret) > SECRETS_MAX:
        report.add_problem(place, f"has more than {SECRETS_MAX} secrets; remove those that no key uses any longer")
    for number, secret in enumerate(file.key_secret):
        here = place if len(file.key_secret) == 1 else (*place, number)
        if secret and secret in file.key_secret[:number]:
            report.add_problem(here, "is the same as an earlier secret; remove one of them")
        elif len(secret) < SECRET_LENGTH_MIN:
            report.add_warning(here, "is short enough to be guessed; use the output of `headgate keys secret`")


def _check_anonymous(file: ConfigFile, report: ConfigReport) -> None:
    name, place = file.anonymous_tenant, ("anonymous_tenant",)
    if name is None:
        return
    if name not in file.tenants:
        hint = suggestion(name, file.tenants, otherwise=f'; add "{name}: {{}}" to tenants')
        report.add_problem(place, f'tenant "{name}" does not exist{hint}')
    elif not _is_local(file.listen[0]):
        warning = (
            f'every client that can reach {file.listen[0]} acts as tenant "{name}" without a key; '
            "listen on 127.0.0.1, or remove it"
        )
        report.add_warning(place, warning)


def _check_reachable(file: ConfigFile, report: ConfigReport) -> None:
    if file.database is not None or (file.identity is not None and file.tenants):
        # The database has more tenants and keys, and tokens may name any tenant. They are not known here.
        return
    if not file.tenants:
        report.add_warning(
            ("tenants",),
            "no tenant is defined, so every request is rejected; `headgate keys new --tenant NAME` creates a key",
        )
    # A parent tenant may exist only for its limits, while its descendants have the keys.
    wholes = {name[:end] for name in file.tenants for end, sign in enumerate(name) if sign == "/"}
    for name, tenant in file.tenants.items():
        if not tenant.keys and name != file.anonymous_tenant and name not in wholes:
            hint = f"`headgate keys new --tenant {name}` creates one"
            report.add_warning(
                ("tenants", name), f"has no key and is not the anonymous tenant, so no request can belong to it; {hint}"
            )


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
