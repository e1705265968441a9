"""Cell options: the store and the name of this member.

Without `cell`, the gateway has its own scheduler. The member name differs between a cell's gateways, so it is not part
of their shared configuration.

The store URL may contain a password, so no message quotes it. `CellOptions` has the complete URL for the connection,
with defaults filled in, and a redacted one for display.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote

from headgate.config import quantities
from headgate.config.fill import fill, given_settings
from headgate.config.fleets import PROCESSES, RAY
from headgate.config.problems import ConfigReport
from headgate.config.references import NAME_RULE, is_name
from headgate.config.schema import CellSection, ConfigFile
from headgate.config.settings import Address, Settings
from headgate.hosts.cell.options import CellOptions

SCHEMES: Final = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")
PORT: Final = 6379
SENTINEL_PORT: Final = 26_379
DATABASE_MAX: Final = 99_999
MEMBER_LENGTH_MAX: Final = 128
TLS_FILES: Final = ("ca", "certificate", "key")
"""Options of a store URL."""

_MEMBER: Final = re.compile(rf"[A-Za-z0-9_.:-]{{1,{MEMBER_LENGTH_MAX}}}")
_NOT_IN_A_MEMBER: Final = re.compile(r"[^A-Za-z0-9_.:-]")
_HOST: Final = re.compile(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+")
_MASTER: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_CREDENTIALS: Final = re.compile(r"[^\s/?#@:\[\]]*:[^\s/?#@:\[\]]+")
_STORE: Final = ("cell", "store")


def cell_options(file: ConfigFile, report: ConfigReport) -> CellOptions | None:
    cell = file.cell
    if cell is None:
        return None
    _check_names(cell, report)
    _check_fleets(file, report)
    store = _store(cell.store, report)
    if file.scaler_listen is not None:
        warning = (
            "only the scheduler of a cell knows the desired endpoint count; other members report the current count"
        )
        report.add_warning(("scaler_listen",), f"{warning}; use headgate_endpoints_desired from Prometheus instead")
    if cell.member_count == 1:
        warning = "is 1, so each gateway that starts while the store is unreachable uses all slots and limits"
        report.add_warning(("cell", "member_count"), f"{warning}; set it to the number of gateways in the cell")
    addresses = {"store": "" if store is None else store.url, "store_shown": "" if store is None else store.redacted}
    return fill(CellOptions, given_settings(cell) | addresses)


def member_name(settings: Settings, host: str, *, worker: int | None = None, serves: bool = True) -> str:
    """Name of this process in its cell: `cell.member_name`, or its host and API port.

    Several processes may use one file, such as workers that share a port, or a scheduler next to a gateway. Suffixes
    distinguish them.
    """
    assert settings.cell is not None, "the file must have a cell"
    name = settings.cell.member_name or f"{_NOT_IN_A_MEMBER.sub('-', host)}-{settings.listen.port}"
    suffix = ("" if serves else "-scheduler") + ("" if worker is None else f"-{worker}")
    return name[: MEMBER_LENGTH_MAX - len(suffix)] + suffix


def _check_names(cell: CellSection, report: ConfigReport) -> None:
    if not is_name(cell.name):
        report.add_problem(("cell", "name"), NAME_RULE)
    if cell.member_name is not None and not _MEMBER.fullmatch(cell.member_name):
        wrong = f"must have 1 to {MEMBER_LENGTH_MAX} characters: letters, digits, and . _ : -"
        report.add_problem(("cell", "member_name"), wrong)


def _check_fleets(file: ConfigFile, report: ConfigReport) -> None:
    for name, pool in file.pools.items():
        if pool.fleet.kind in (PROCESSES, RAY):
            wrong = (
                f"is {pool.fleet.kind}, so each gateway of the cell would start its own engines; use static or "
                "dns, with an autoscaler such as KEDA if their number changes, or remove cell"
            )
            report.add_problem(("pools", name, "fleet", "kind"), wrong)


# The store


@dataclass(frozen=True, slots=True)
class _StoreUrl:
    """Parsed URL of a store."""

    scheme: str
    credentials: str
    """`USER:PASSWORD` as written; empty if there are none."""
    addresses: tuple[Address, ...]
    master: str
    """Name of the master in Sentinel; empty without Sentinel."""
    database: int
    tls_files: Mapping[str, str]
    """Paths of the CA, the client certificate and its key, by the name of the URL's option."""

    @property
    def url(self) -> str:
        return self._url_with(f"{self.credentials}@" if self.credentials else "")

    @property
    def redacted(self) -> str:
        user = self.credentials.partition(":")[0]
        return self._url_with(f"{user}:***@" if self.credentials else "")

    def _url_with(self, credentials: str) -> str:
        addresses = ",".join(quantities.address_text(*each) for each in self.addresses)
        master = f"/{self.master}" if self.master else ""
        options = "&".join(f"{name}={quote(path)}" for name, path in self.tls_files.items())
        query = f"?{options}" if options else ""
        return f"{self.scheme}://{credentials}{addresses}{master}/{self.database}{query}"


def _store(text: str, report: ConfigReport) -> _StoreUrl | None:
    """The parsed URL. None if it is invalid, in which case a problem is reported."""
    scheme, there, rest = text.partition("://")
    if not there or scheme not in SCHEMES:
        report.add_problem(_STORE, f"is not a store URL; start it with {_listed(SCHEMES)} and ://")
        return None
    rest, _, query = rest.partition("?")
    place, _, path = rest.partition("/")
    credentials, _, hosts = place.rpartition("@")
    sentinel = scheme.endswith("+sentinel")
    if "@" in path + query or "#" in text:
        report.add_problem(_STORE, "has / ? # or @ in the password; write these as %2F %3F %23 %40")
        return None
    if "@" in place and not _CREDENTIALS.fullmatch(credentials):
        wrong = "has no password, or one with reserved characters; write USER:PASSWORD@ or"
        report.add_problem(_STORE, f"{wrong} :PASSWORD@ before the host, with / ? # @ : % as %2F %3F %23 %40 %3A %25")
        return None
    addresses = _addresses(hosts, SENTINEL_PORT if sentinel else PORT, report)
    if len(addresses) > 1 and not sentinel:
        report.add_problem(_STORE, "has several hosts; use redis+sentinel:// if they are sentinels, otherwise keep one")
    master, database = _path(path, sentinel, report)
    return _StoreUrl(scheme, credentials, addresses, master, database, _tls_files(query, scheme, report))


def _addresses(text: str, port: int, report: ConfigReport) -> tuple[Address, ...]:
    found: list[Address] = []
    for each in text.split(","):
        try:
            found.append(Address(*quantities.address(f"{each}:{port}" if _HOST.fullmatch(each) else each)))
        except quantities.InvalidQuantity:
            report.add_problem(_STORE, "has no valid host; write HOST:PORT after ://, such as cache:6379")
    if any(each.port == 0 or not _HOST.fullmatch(_bracketed(each.host)) for each in found):
        report.add_problem(_STORE, "has no valid host or port; write HOST:PORT after ://, such as cache:6379")
    return tuple(found)


def _path(path: str, sentinel: bool, report: ConfigReport) -> tuple[str, int]:  # noqa: FBT001 (kind of URL)
    """Sentinel's master name (empty without Sentinel) and the database number."""
    master, _, number = path.partition("/") if sentinel else ("", "", path)
    if sentinel and not _MASTER.fullmatch(master):
        wrong = "has no master name; write the name known to the sentinels after the hosts, such as /mymaster"
        report.add_problem(_STORE, wrong)
    if number and not (number.isascii() and number.isdigit() and int(number) <= DATABASE_MAX):
        report.add_problem(_STORE, "does not end with a database number; write one, such as /0, or remove the path")
        return master, 0
    return master, int(number or 0)


def _tls_files(query: str, scheme: str, report: ConfigReport) -> dict[str, str]:
    """The files in the URL's options. Without a CA, the system's CAs are used."""
    if not query:
        return {}
    options = dict(parse_qsl(query, keep_blank_values=True))
    if not options or options.keys() - TLS_FILES or not all(options.values()):
        allowed = ", ".join(f"{name}=FILE" for name in TLS_FILES)
        report.add_problem(_STORE, f"has an unknown option after the question mark; only {allowed} are allowed")
    elif not scheme.startswith("rediss"):
        name = next(iter(options))
        report.add_problem(_STORE, f"has a {name}, but the connection does not use TLS; use rediss instead of redis")
    elif "key" in options and "certificate" not in options:
        report.add_problem(_STORE, "has a key without a certificate; add certificate=FILE")
    return {name: options[name] for name in TLS_FILES if name in options}


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listed(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
