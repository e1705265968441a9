"""Address and credentials of the store.

    redis://[user:password@]host[:port][/database]          rediss:// for TLS
    redis+sentinel://[user:password@]host[:port],.../master[/database]          rediss+sentinel:// for TLS

For TLS, `?ca=FILE` names a private CA, and `?certificate=FILE&key=FILE` a client certificate.
The user and password are for the store. They are sent to a sentinel only if it requires authentication. The password
never appears in a message or a `repr`.
"""

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote

from headgate.ports.tls import ClientTlsOptions

DEFAULT_PORT: Final = 6_379
DEFAULT_SENTINEL_PORT: Final = 26_379

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class StoreLocation:
    addresses: tuple[Address, ...]
    """Addresses of the store, or of its sentinels if `master` is set."""
    master: str | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    database: int = 0
    tls: bool = False
    tls_files: ClientTlsOptions = field(default_factory=ClientTlsOptions)

    @property
    def login(self) -> tuple[str, ...] | None:
        if not self.password:
            return None
        return ("AUTH", self.user, self.password) if self.user else ("AUTH", self.password)


def parse_store_url(url: str) -> StoreLocation:
    """Parses a store URL.

    The configuration has already validated it, so an error here is a bug. Messages do not contain the password.
    """
    scheme, _, rest = url.partition("://")
    kind, _, sentinel = scheme.partition("+")
    if kind not in ("redis", "rediss") or sentinel not in ("", "sentinel"):
        raise ValueError("a store URL must start with redis, rediss, redis+sentinel or rediss+sentinel and ://")
    rest, _, query = rest.partition("?")
    hosts, _, path = rest.partition("/")
    login, _, hosts = hosts.rpartition("@")
    user, _, password = login.partition(":")
    master, _, database = path.partition("/") if sentinel else ("", "", path)
    if sentinel and not master:
        raise ValueError("a sentinel URL must end with the name of the master")
    files = dict(parse_qsl(query))
    return StoreLocation(
        tuple(_address(each, DEFAULT_SENTINEL_PORT if sentinel else DEFAULT_PORT) for each in hosts.split(",")),
        master=master or None,
        user=unquote(user),
        password=unquote(password),
        database=int(database or 0),
        tls=kind == "rediss",
        tls_files=ClientTlsOptions(files.get("ca"), files.get("certificate"), files.get("key")),
    )


def _address(text: str, port: int) -> Address:
    host, _, number = text.rpartition(":") if ":" in text.rpartition("]")[2] else (text, "", "")
    return host.strip("[]"), int(number or port)
