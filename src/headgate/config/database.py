"""Where are tenants and keys kept beside the file, and who may change them?

Left out, nowhere: the file alone says who may call. Where both name a tenant of the same id, the file's counts.

The address may hold a password. So no message repeats any part of it, and it comes out in two forms: as it was written,
for whoever connects, and without the password, for everybody else.
"""

from typing import Final
from urllib.parse import parse_qsl, urlsplit

from headgate.config.fill import fill, given
from headgate.config.problems import Report
from headgate.config.references import A_NAME, is_name
from headgate.config.schema import File
from headgate.config.settings import AdminKey
from headgate.config.shape import suggestion
from headgate.ledger.options import DatabaseOptions
from headgate.wire.keys import parse_digest

SCHEMES: Final = ("postgresql", "postgres")
PERMISSIONS: Final = ("read", "keys", "operate")
"""To look; to change tenants and keys; to give orders."""

_URL: Final = ("database", "url")
_OPTIONS: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey")
_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


def database_options(file: File, report: Report) -> DatabaseOptions | None:
    if file.database is None:
        return None
    shown = _shown(file.database.url, report)
    return fill(DatabaseOptions, given(file.database) | {"url_shown": shown})


def admin_keys(file: File, report: Report) -> tuple[AdminKey, ...]:
    found: list[AdminKey] = []
    for name, section in file.admin_keys.items():
        place = ("admin_keys", name)
        if not is_name(name):
            report.problem(place, A_NAME, read=True)
        known = parse_digest(section.key)
        if known is None:
            problem = "is not the hash of a key (hmac-sha256: and 64 hexadecimal digits); "
            report.problem((*place, "key"), problem + "`headgate keys hash` turns a key into one")
        if not section.permissions:
            report.problem((*place, "permissions"), f"is empty, so the key is good for nothing; list {_listed()}")
        for number, each in enumerate(section.permissions):
            if each not in PERMISSIONS:
                hint = suggestion(each, PERMISSIONS, quiet=f"; there is {_listed()}")
                report.problem((*place, "permissions", number), f'permission "{each}" does not exist{hint}')
        found.append(AdminKey(name, known or b"", tuple(section.permissions)))
    _check_apart(found, file, report)
    if file.database is None:
        _check_without_database(found, file, report)
    return tuple(found)


def _check_without_database(keys: list[AdminKey], file: File, report: Report) -> None:
    """Warns about operator keys that need a database: for tenants and keys, and for the orders of a cell."""
    if keys and file.cell is not None:
        report.warn(
            ("admin_keys",), "cannot place orders in a cell without a database; add database.url, or remove the cell"
        )
    for each in keys:
        if "keys" in each.permissions:
            place = ("admin_keys", each.name, "permissions", each.permissions.index("keys"))
            report.warn(place, 'permission "keys" needs a database; remove it, or add database.url')


def _check_apart(keys: list[AdminKey], file: File, report: Report) -> None:
    """A key has one holder; and who may call is not for that reason an operator."""
    callers = {parse_digest(text) for tenant in file.tenants.values() for text in tenant.keys}
    seen: dict[bytes, str] = {}
    for each in keys:
        place = ("admin_keys", each.name, "key")
        if each.digest in callers:
            report.problem(place, "is also the key of a tenant; make one that is for operating alone")
        elif each.digest and each.digest in seen:
            report.problem(place, f'is already the key of "{seen[each.digest]}"; give each operator their own')
        seen[each.digest] = each.name


def _listed() -> str:
    return ", ".join(PERMISSIONS)


def _shown(text: str, report: Report) -> str:
    """Without the password; empty where it is wrong, which is reported."""
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        report.problem(_URL, "cannot be read; in the password write / ? # @ : % [ ] as %2F %3F %23 %40 %3A %25 %5B %5D")
        return ""
    if url.scheme not in SCHEMES:
        report.problem(_URL, "is no address of a PostgreSQL database; begin it with postgresql://")
        return ""
    if not url.hostname or "@" in url.path or url.fragment or url.netloc.count("@") > 1:
        report.problem(_URL, "the host is missing, or the password holds a / ? # or @; write these as %2F %3F %23 %40")
        return ""
    if len(url.path) < 2:
        report.problem(_URL, "does not say which database; write its name behind the host, such as /headgate")
    _check_options(url.query, report)
    user = f"{url.username}@" if url.username and url.password is None else f"{url.username or ''}:***@"
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    there = f"{host}:{port}" if port is not None else host
    query = f"?{url.query}" if url.query else ""
    return f"{url.scheme}://{user if url.username or url.password else ''}{there}{url.path}{query}"


def _check_options(query: str, report: Report) -> None:
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            report.problem(_URL, f"only {', '.join(_OPTIONS)} may stand after the question mark; take out the rest")
            return
        if name == "sslmode" and value not in _MODES:
            report.problem(_URL, f"its sslmode is no such thing; write one of {', '.join(_MODES)}")
