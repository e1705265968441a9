"""What keeps the store away, and what is to be done about it?

Much passes by itself: a store that restarts, is busy or fails over. What does not is said with the next step. No text
of this file holds a password, even where the store repeats what it was sent.
"""

import socket
import ssl
from typing import Final

import hiredis

from headgate.hosts.cell.redis.place import Address, Place

TEXT_MAX: Final = 200

FOREIGN: Final = (
    "holds values under the cell's names that no gateway has written; delete its keys {headgate:NAME}:*, or give the "
    "cell another name"
)

_SAID: Final = {
    "WRONGPASS": "refuses the user or password; correct them in cell.store",
    "NOAUTH": "asks for a password; write it in cell.store, as in redis://:PASSWORD@host",
    "NOPERM": "does not allow its user what a cell needs; allow it all commands on the keys {headgate:*",
    "READONLY": "is a replica, which takes nothing; name the master in cell.store, or the sentinels that know it",
    "OOM": "is out of memory; raise its maxmemory, or take away what else it holds",
    "MISCONF": "takes nothing since it cannot save to its disk; see to the disk, or set stop-writes-on-bgsave-error no",
    "NOREPLICAS": "takes nothing while too few replicas follow it; see to them, or lower its min-replicas-to-write",
    "WRONGTYPE": "holds keys of another kind under the cell's names; give the cell another name, or another database",
    "MOVED": "is part of a Redis Cluster; name a single store, or sentinels, in cell.store",
    "CROSSSLOT": "is part of a Redis Cluster; name a single store, or sentinels, in cell.store",
    "CLUSTERDOWN": "is part of a Redis Cluster; name a single store, or sentinels, in cell.store",
    "DENIED": "is in protected mode, with callers from its own machine only; give it a password, and cell.store too",
    "LOADING": "is loading its data; that passes by itself",
    "BUSY": "is busy with somebody's script; that passes by itself, or end it with SCRIPT KILL",
    "MASTERDOWN": "is a replica that has lost its master; name the master in cell.store, or the sentinels that know it",
}
_PARTS: Final = (
    ("invalid password", _SAID["WRONGPASS"]),
    ("without any password configured", "has no password, and was given one; take it out of cell.store"),
    ("max number of clients", "has as many connections as it may; raise its maxclients"),
    ("DB index", "has no such database; correct the number at the end of cell.store"),
    ("NOPERM", _SAID["NOPERM"]),
    ("unknown command", "does not know a command that a cell needs; use Redis or Valkey of version 7 or later"),
    ("READONLY", _SAID["READONLY"]),
    ("OOM", _SAID["OOM"]),
    ("user_script", FOREIGN),
)
"""Where the first word says nothing: what else stands in it. Errors inside a script come so."""


class Unusable(Exception):
    """What was found out by ourselves; the text says what and the next step."""


class Replaced(Exception):
    """The sentinels name another master."""


class Slow(Exception):
    """The store answers, and too late to be of use."""


CAUSES: Final = (OSError, TimeoutError, hiredis.HiredisError, Unusable, Replaced, Slow)
"""What may come of a store. All else is a mistake of ours."""


def problem_of(cause: Exception, place: Place, address: Address | None) -> str:
    """One sentence for people."""
    who = "the store" if address is None else f"the store at {_shown(address)}"
    return without_password(f"{who} {_what(cause, place)}", place)


def without_password(text: str, place: Place) -> str:
    return text.replace(place.password, "***") if place.password else text


def _what(cause: Exception, place: Place) -> str:  # noqa: PLR0911  One sentence for each cause.
    match cause:
        case Unusable():
            return str(cause)
        case Replaced():
            return "is the master no more; the next is on its way"
        case Slow():
            return "answers too slowly; it is left alone until it is quick again"
        case hiredis.ReplyError():
            return _said(str(cause))
        case hiredis.ProtocolError():
            return "does not speak the protocol of Redis; correct host and port in cell.store"
        case ssl.SSLCertVerificationError():
            return f"has a certificate that is not trusted ({cause.verify_message}); name its authority with ?ca=FILE"
        case ssl.SSLError():
            return f"refuses TLS ({cause.reason}); where it has none, write redis in place of rediss in cell.store"
        case socket.gaierror():
            return "is not to be found under that name; correct the host in cell.store, or the machine's DNS"
        case TimeoutError():
            without = ", or speaks no TLS" if place.tls else ""
            return f"does not answer in time; it is paused, overloaded or out of reach{without}"
        case ConnectionRefusedError():
            return "is not there: nothing listens; start it, or correct host and port in cell.store"
        case ConnectionError():
            tls = "" if place.tls else "; if that goes on and it asks for TLS, write rediss in place of redis"
            return f"has closed the connection{tls}"
        case _:
            return f"cannot be reached: {str(cause)[:TEXT_MAX] or type(cause).__name__}"


def _said(text: str) -> str:
    known = _SAID.get(text.partition(" ")[0])
    if known is not None:
        return known
    for part, meaning in _PARTS:
        if part in text:
            return meaning
    # What follows is what the store was sent.
    return f"refuses: {text.partition(', with args')[0][:TEXT_MAX]}"


def _shown(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
