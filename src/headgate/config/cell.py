"""With which other gateways does this one share a queue, and through which store?

Left out, with none: the gateway has a scheduler of its own. What one member is called is its own affair and no part of
the configuration that all of them have alike.

The address of the store may hold a password. So no message repeats any part of it, and it comes out in two forms:
whole, with everything that was left out filled in, for whoever connects; and without the password, for everybody else.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote

from headgate.config import quantities
from headgate.config.fill import fill, given
from headgate.config.fleets import PROCESSES, RAY
from headgate.config.problems import Report
from headgate.config.references import A_NAME, is_name
from headgate.config.schema import CellSection, File
from headgate.config.settings import Address, Settings
from headgate.hosts.cell.options import CellOptions

SCHEMES: Final = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")
PORT: Final = 6379
SENTINEL_PORT: Final = 26_379
DATABASE_MAX: Final = 99_999
MEMBER_LENGTH_MAX: Final = 128

_MEMBER: Final = re.compile(rf"[A-Za-z0-9_.:-]{{1,{MEMBER_LENGTH_MAX}}}")
_NOT_IN_A_MEMBER: Final = re.compile(r"[^A-Za-z0-9_.:-]")
_HOST: Final = re.compile(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+")
_MASTER: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_CREDENTIALS: Final = re.compile(r"[^\s/?#@:\[\]]*:[^\s/?#@:\[\]]+")
_STORE: Final = ("cell", "store")


def cell_options(file: File, report: Report) -> CellOptions | None:
    cell = file.cell
    if cell is None:
        return None
    _check_names(cell, report)
    _check_fleets(file, report)
    store = _store(cell.store, report)
    if file.scaler_listen is not None:
        warning = "only the scheduler of a cell knows how many endpoints are wanted, and others say what there is"
        report.warn(("scaler_listen",), f"{warning}; take headgate_endpoints_wanted from Prometheus instead")
    if cell.members == 1:
        warning = "is 1, so each gateway that starts while the store is away takes everything there is for itself"
        report.warn(("cell", "members"), f"{warning}; say how many gateways the cell has")
    addresses = {"store": "" if store is None else store.url, "store_shown": "" if store is None else store.shown}
    return fill(CellOptions, given(cell) | addresses)


def member_name(settings: Settings, host: str, *, worker: int | None = None, serves: bool = True) -> str:
    """What this process is called in its cell: as the file says, else after its host and the port of its callers.

    Several may run by one file: the workers of one port, and a scheduler beside a gateway.
    """
    assert settings.cell is not None, "only a member of a cell has a name there"
    name = settings.cell.member or f"{_NOT_IN_A_MEMBER.sub('-', host)}-{settings.listen.port}"
    suffix = ("" if serves else "-scheduler") + ("" if worker is None else f"-{worker}")
    return name[: MEMBER_LENGTH_MAX - len(suffix)] + suffix


def _check_names(cell: CellSection, report: Report) -> None:
    if not is_name(cell.name):
        report.problem(("cell", "name"), A_NAME)
    if cell.member is not None and not _MEMBER.fullmatch(cell.member):
        wrong = f"a member's name is made of up to {MEMBER_LENGTH_MAX} letters, digits, and . _ : -; write one such"
        report.problem(("cell", "member"), wrong)


def _check_fleets(file: File, report: Report) -> None:
    for name, pool in file.pools.items():
        if pool.fleet.kind in (PROCESSES, RAY):
            wrong = (
                f"is {pool.fleet.kind}, and each gateway of the cell would start engines of its own; use static or "
                "dns, with an autoscaler such as KEDA where their number changes, or take out cell"
            )
            report.problem(("pools", name, "fleet", "kind"), wrong)


# The store


@dataclass(frozen=True, slots=True)
class _Store:
    """An address with all its parts."""

    scheme: str
    credentials: str
    """`USER:PASSWORD` as written; empty where there are none."""
    addresses: tuple[Address, ...]
    master: str
    """What Sentinel calls it; empty without Sentinel."""
    database: int
    ca: str

    @property
    def url(self) -> str:
        return self._with(f"{self.credentials}@" if self.credentials else "")

    @property
    def shown(self) -> str:
        user = self.credentials.partition(":")[0]
        return self._with(f"{user}:***@" if self.credentials else "")

    def _with(self, credentials: str) -> str:
        addresses = ",".join(quantities.address_text(*each) for each in self.addresses)
        master = f"/{self.master}" if self.master else ""
        query = f"?ca={quote(self.ca)}" if self.ca else ""
        return f"{self.scheme}://{credentials}{addresses}{master}/{self.database}{query}"


def _store(text: str, report: Report) -> _Store | None:
    """None where it is wrong, which is reported."""
    scheme, there, rest = text.partition("://")
    if not there or scheme not in SCHEMES:
        report.problem(_STORE, f"is no address of a store; begin it with {_listed(SCHEMES)} and ://")
        return None
    rest, _, query = rest.partition("?")
    place, _, path = rest.partition("/")
    credentials, _, hosts = place.rpartition("@")
    sentinel = scheme.endswith("+sentinel")
    if "@" in path + query or "#" in text:
        report.problem(_STORE, "holds a / ? # or @ inside the password; write these as %2F %3F %23 %40")
        return None
    if "@" in place and not _CREDENTIALS.fullmatch(credentials):
        wrong = "the password is missing or holds a sign that has a meaning in an address; write USER:PASSWORD@ or"
        report.problem(_STORE, f"{wrong} :PASSWORD@ before the host, and in it / ? # @ : % as %2F %3F %23 %40 %3A %25")
        return None
    addresses = _addresses(hosts, SENTINEL_PORT if sentinel else PORT, report)
    if len(addresses) > 1 and not sentinel:
        report.problem(
            _STORE, "names several hosts; write redis+sentinel:// where they are sentinels, else one of them"
        )
    master, database = _path(path, sentinel, report)
    return _Store(scheme, credentials, addresses, master, database, _ca(query, scheme, report))


def _addresses(text: str, port: int, report: Report) -> tuple[Address, ...]:
    found: list[Address] = []
    for each in text.split(","):
        try:
            found.append(Address(*quantities.address(f"{each}:{port}" if _HOST.fullmatch(each) else each)))
        except quantities.Unreadable:
            report.problem(_STORE, "the host is missing or misspelt; write HOST:PORT after ://, such as cache:6379")
    if any(each.port == 0 or not _HOST.fullmatch(_bracketed(each.host)) for each in found):
        report.problem(_STORE, "the host or its port is no such thing; write HOST:PORT after ://, such as cache:6379")
    return tuple(found)


def _path(path: str, sentinel: bool, report: Report) -> tuple[str, int]:  # noqa: FBT001 (of which kind it is)
    """The master's name, empty without Sentinel, and the database."""
    master, _, number = path.partition("/") if sentinel else ("", "", path)
    if sentinel and not _MASTER.fullmatch(master):
        wrong = "does not say which master; write its name, as sentinels know it, after the hosts, such as /mymaster"
        report.problem(_STORE, wrong)
    if number and not (number.isascii() and number.isdigit() and int(number) <= DATABASE_MAX):
        report.problem(_STORE, "its end is no number of a database; write a number there, such as /0, or nothing")
        return master, 0
    return master, int(number or 0)


def _ca(query: str, scheme: str, report: Report) -> str:
    """The file of the authority that signed the store's certificate; empty for those that the system trusts."""
    if not query:
        return ""
    options = dict(parse_qsl(query, keep_blank_values=True))
    if options.keys() != {"ca"} or not options["ca"]:
        report.problem(_STORE, "only ca=FILE may stand after the question mark; take out the rest")
    elif not scheme.startswith("rediss"):
        report.problem(_STORE, "names an authority, and the connection has no TLS; write rediss in place of redis")
    return options.get("ca", "")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listed(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
