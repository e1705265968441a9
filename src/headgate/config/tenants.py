"""Who may call, and how are they recognised?"""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from types import MappingProxyType

from headgate.config.problems import Report
from headgate.config.schema import File
from headgate.config.shape import suggestion
from headgate.model.units import TenantId
from headgate.wire.keys import parse_digest

# What `headgate keys secret` makes is longer; this is what a person might type.
SECRET_LENGTH_MIN = 16


@dataclass(frozen=True, slots=True)
class Callers:
    key_secret: bytes | None
    keys: Mapping[bytes, TenantId]
    anonymous_tenant: TenantId | None


def callers(file: File, report: Report) -> Callers:
    keys = _keys(file, report)
    _check_secret(file, report)
    _check_anonymous(file, report)
    _check_reachable(file, report)
    return Callers(
        key_secret=None if file.key_secret is None else file.key_secret.encode(),
        keys=MappingProxyType(keys),
        anonymous_tenant=None if file.anonymous_tenant is None else TenantId(file.anonymous_tenant),
    )


def _keys(file: File, report: Report) -> dict[bytes, TenantId]:
    owners: dict[bytes, TenantId] = {}
    for name, tenant in file.tenants.items():
        for number, text in enumerate(tenant.keys):
            place = ("tenants", name, "keys", number)
            digest = parse_digest(text)
            if digest is None:
                problem = "is not the hash of a key (hmac-sha256: and 64 hexadecimal digits); "
                report.problem(place, problem + "`headgate keys hash` turns a key into one")
            elif digest in owners:
                report.problem(place, f'is already a key of tenant "{owners[digest]}"; keep it in one place')
            else:
                owners[digest] = TenantId(name)
    return owners


def _check_secret(file: File, report: Report) -> None:
    place = ("key_secret",)
    with_keys = next((name for name, tenant in file.tenants.items() if tenant.keys), None)
    if file.key_secret is None and with_keys is not None:
        problem = f'missing, but tenant "{with_keys}" has keys, which are hashed under it; '
        report.problem(place, problem + "write ${HEADGATE_KEY_SECRET} and export what `headgate keys secret` prints")
    elif file.key_secret is None and (file.database is not None or file.admin_keys):
        problem = "missing, but keys in the database and those of operators are hashed under it; "
        report.problem(place, problem + "write ${HEADGATE_KEY_SECRET} and export what `headgate keys secret` prints")
    elif file.key_secret is not None and len(file.key_secret) < SECRET_LENGTH_MIN:
        report.warn(place, "is short enough to be guessed; `headgate keys secret` makes a better one")


def _check_anonymous(file: File, report: Report) -> None:
    name, place = file.anonymous_tenant, ("anonymous_tenant",)
    if name is None:
        return
    if name not in file.tenants:
        hint = suggestion(name, file.tenants, quiet=f'; add "{name}: {{}}" to tenants')
        report.problem(place, f'tenant "{name}" does not exist{hint}')
    elif not _is_local(file.listen[0]):
        warning = (
            f'whoever reaches {file.listen[0]} is tenant "{name}", without a key; listen on 127.0.0.1 or remove it'
        )
        report.warn(place, warning)


def _check_reachable(file: File, report: Report) -> None:
    if file.database is not None:
        # Who may call stands there as well, and nobody knows here.
        return
    if not file.tenants:
        report.warn(
            ("tenants",), "there is no tenant, so nobody can call; `headgate keys new --tenant NAME` makes a key"
        )
    # A limit of the whole may stand above tenants with keys of their own.
    wholes = {name[:end] for name in file.tenants for end, sign in enumerate(name) if sign == "/"}
    for name, tenant in file.tenants.items():
        if not tenant.keys and name != file.anonymous_tenant and name not in wholes:
            hint = f"`headgate keys new --tenant {name}` makes one"
            report.warn(
                ("tenants", name), f"has no key and is not the anonymous tenant, so nobody can call as it; {hint}"
            )


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
