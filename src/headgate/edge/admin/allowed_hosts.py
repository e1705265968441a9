"""Host and Origin checks for the admin listener.

The admin pages do not require a key, so a web page must not be able to read them through an operator's browser. With
DNS rebinding, the page's host name resolves to the admin listener's address, so the browser treats the two as the same
site. The attack only works with a host name. IP addresses in the Host header are therefore always allowed, and names
only if they are on the list. `/health` is served before this check, because it contains nothing confidential.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final

from headgate.wire.escape import printable

_LOCALHOST: Final = "localhost"
_SHOWN_CHARS_MAX: Final = 80


class AllowedHosts:
    """Host names allowed in requests to the admin listener, besides `localhost`."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(each.lower().rstrip(".") for each in names)

    def rejection(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Returns why a request with these headers is rejected and how to allow it, or None if it is allowed."""
        host = headers.get(b"host")
        if host is None:
            return None  # HTTP/1.0; no browser uses it.
        name = _host_name(host.decode("latin-1"))
        if not self._allows(name):
            shown = printable(name, _SHOWN_CHARS_MAX)
            return f'Rejected: host name "{shown}" is not allowed on the admin listener. Add it to admin_allowed_hosts.'
        origin = headers.get(b"origin")
        if origin is not None and not _same_site(origin, host):
            return "Rejected: the page at this Origin is not the console of this gateway."
        return None

    def _allows(self, name: str) -> bool:
        return name == _LOCALHOST or name.endswith(f".{_LOCALHOST}") or name in self._names or _is_address(name)


def _host_name(host: str) -> str:
    """Returns the host without its port, in lower case."""
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same_site(origin: bytes, host: bytes) -> bool:
    scheme, separator, authority = origin.lower().partition(b"://")
    return bool(separator) and scheme in (b"http", b"https") and authority == host.strip().lower()
