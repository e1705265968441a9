"""Database with additional tenants and keys, and the operator keys that may change them.

Without `database`, only the tenants in the file exist. If the file and the database have a tenant with the same id, the
file takes precedence.

The URL may contain a password, so no message quotes it. `DatabaseOptions` has the complete URL for the connection and a
redacted one for display.
"""

from typing import Final
from urllib.parse import parse_qsl, urlsplit

from headgate.config.enum_values import parse_enum
from headgate.config.fill import fill, given_settings
from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.references import NAME_RULE, is_name
from headgate.config.schema import AdminKeySection, ConfigFile
from headgate.config.schema_reader import available, suggestion
from headgate.config.settings import AdminKey
from headgate.ledger.options import DatabaseOptions
from headgate.ports.admin_roles import ROLES, Permission, Role
from headgate.wire.keys import parse_digest

SCHEMES: Final = ("postgresql", "postgres")
PERMISSIONS: Final = tuple(each.value for each in Permission)
ROLE_NAMES: Final = tuple(each.value for each in Role)

_URL: Final = ("database", "url")
_URL_OPTIONS: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey")
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


def database_options(file: ConfigFile, report: ConfigReport) -> DatabaseOptions | None:
    if file.database is None:
        return None
    shown = _redacted_url(file.database.url, report)
    return fill(DatabaseOptions, given_settings(file.database) | {"url_redacted": shown})


def admin_keys(file: ConfigFile, report: ConfigReport) -> tuple[AdminKey, ...]:
    found: list[AdminKey] = []
    for name, section in file.admin_keys.items():
        place = ("admin_keys", name)
        if not is_name(name):
            report.add_problem(place, NAME_RULE, contents_valid=True)
        known = parse_digest(section.key)
        if known is None:
            problem = "is not a key hash (hmac-sha256: and 64 hexadecimal digits); "
            report.add_problem((*place, "key"), problem + "`headgate keys hash` computes one")
        permissions, role = _granted(section, place, report)
        found.append(AdminKey(name, known or b"", permissions, role))
    _check_distinct(found, file, report)
    if file.database is None:
        _check_without_database(found, file, report)
    return tuple(found)


def _granted(section: AdminKeySection, place: SettingPath, report: ConfigReport) -> tuple[tuple[str, ...], Role | None]:
    """Returns the key's permissions, and its role if it names one."""
    if section.role is not None:
        if section.permissions is not None:
            report.add_problem((*place, "role"), "cannot be combined with permissions; remove one of them")
        role = parse_enum(Role, section.role, Role.VIEWER, (*place, "role"), report)
        return tuple(sorted(ROLES[role])), role
    if not section.permissions:
        missing = "missing" if section.permissions is None else "is empty, so the key has no permissions"
        problem = f"{missing}; list some of {', '.join(PERMISSIONS)}, or set role to one of {', '.join(ROLE_NAMES)}"
        report.add_problem((*place, "permissions"), problem)
    for number, each in enumerate(section.permissions or ()):
        if each not in PERMISSIONS:
            hint = suggestion(each, PERMISSIONS, otherwise=available(PERMISSIONS))
            report.add_problem((*place, "permissions", number), f'permission "{each}" does not exist{hint}')
    return tuple(section.permissions or ()), None


def _check_without_database(keys: list[AdminKey], file: ConfigFile, report: ConfigReport) -> None:
    """Warns about operator keys that need a database: those for tenants and keys, and all of them in a cell."""
    if keys and file.cell is not None:
        report.add_warning(
            ("admin_keys",),
            "cannot create overrides in a cell without a database; add database.url, or remove the cell",
        )
    for each in keys:
        if each.role is None and "keys" in each.permissions:
            place = ("admin_keys", each.name, "permissions", each.permissions.index("keys"))
            report.add_warning(place, 'permission "keys" needs a database; remove it, or add database.url')


def _check_distinct(keys: list[AdminKey], file: ConfigFile, report: ConfigReport) -> None:
    """Each key must belong to one operator and must not be a tenant's key."""
    callers = {parse_digest(text) for tenant in file.tenants.values() for text in tenant.keys}
    seen: dict[bytes, str] = {}
    for each in keys:
        place = ("admin_keys", each.name, "key")
        if each.digest in callers:
            report.add_problem(place, "is also the key of a tenant; create a separate operator key")
        elif each.digest and each.digest in seen:
            report.add_problem(place, f'is already the key of "{seen[each.digest]}"; create one key per operator')
        seen[each.digest] = each.name


def _redacted_url(text: str, report: ConfigReport) -> str:
    """URL without the password; empty if the URL is invalid, which is reported."""
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        report.add_problem(
            _URL, "is not a valid URL; in the password write / ? # @ : % [ ] as %2F %3F %23 %40 %3A %25 %5B %5D"
        )
        return ""
    if url.scheme not in SCHEMES:
        report.add_problem(_URL, "is not the URL of a PostgreSQL database; start it with postgresql://")
        return ""
    if not url.hostname or "@" in url.path or url.fragment or url.netloc.count("@") > 1:
        report.add_problem(_URL, "has no host, or / ? # or @ in the password; write these as %2F %3F %23 %40")
        return ""
    if len(url.path) < 2:
        report.add_problem(_URL, "has no database name; write it after the host, such as /headgate")
    _check_options(url.query, report)
    user = f"{url.username}@" if url.username and url.password is None else f"{url.username or ''}:***@"
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    there = f"{host}:{port}" if port is not None else host
    query = f"?{url.query}" if url.query else ""
    return f"{url.scheme}://{user if url.username or url.password else ''}{there}{url.path}{query}"


def _check_options(query: str, report: ConfigReport) -> None:
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _URL_OPTIONS:
            report.add_problem(
                _URL, f"has an unknown option after the question mark; only {', '.join(_URL_OPTIONS)} are allowed"
            )
            return
        if name == "sslmode" and value not in _SSL_MODES:
            report.add_problem(_URL, f"has an unknown sslmode; use one of {', '.join(_SSL_MODES)}")
