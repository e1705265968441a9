"""Where is the store, and what is said at its door?

    redis://[user:password@]host[:port][/database]          rediss:// with TLS, ?ca=FILE for an authority of one's own
    redis+sentinel://[user:password@]host[:port],.../master[/database]          rediss+sentinel:// likewise

User and password are for the store itself; a sentinel is given them only where it asks. No message and no `repr` holds
the password.
"""

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs, unquote

PORT: Final = 6_379
SENTINEL_PORT: Final = 26_379

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Place:
    addresses: tuple[Address, ...]
    """Of the store; of the sentinels that know where it is, where there is a `master`."""
    master: str | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    database: int = 0
    tls: bool = False
    ca: str | None = None
    """The file of an authority of one's own; else those that the system trusts."""

    @property
    def login(self) -> tuple[str, ...] | None:
        if not self.password:
            return None
        return ("AUTH", self.user, self.password) if self.user else ("AUTH", self.password)


def place_of(url: str) -> Place:
    """The configuration has checked it; what is wrong here is a mistake of ours, and is said without the password."""
    scheme, _, rest = url.partition("://")
    kind, _, sentinel = scheme.partition("+")
    if kind not in ("redis", "rediss") or sentinel not in ("", "sentinel"):
        raise ValueError("the address of a store begins with redis, rediss, redis+sentinel or rediss+sentinel and ://")
    rest, _, query = rest.partition("?")
    hosts, _, path = rest.partition("/")
    login, _, hosts = hosts.rpartition("@")
    user, _, password = login.partition(":")
    master, _, database = path.partition("/") if sentinel else ("", "", path)
    if sentinel and not master:
        raise ValueError("the address of sentinels ends with the name of their master")
    return Place(
        tuple(_address(each, SENTINEL_PORT if sentinel else PORT) for each in hosts.split(",")),
        master=master or None,
        user=unquote(user),
        password=unquote(password),
        database=int(database or 0),
        tls=kind == "rediss",
        ca=next(iter(parse_qs(query).get("ca", ())), None),
    )


def _address(text: str, port: int) -> Address:
    host, _, number = text.rpartition(":") if ":" in text.rpartition("]")[2] else (text, "", "")
    return host.strip("[]"), int(number or port)
