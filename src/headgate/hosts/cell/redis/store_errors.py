"""Descriptions of store problems, with the next step.

Some problems are temporary, such as a restart or a failover. All others include the next step. No text contains a
password, even if the store repeats the data it was sent.
"""

import socket
import ssl
from typing import Final

import hiredis

from headgate.hosts.cell.redis.location import Address, StoreLocation

TEXT_MAX: Final = 200
# OpenSSL's codes for invalid certificates.
_X509_EXPIRED: Final = 10
_X509_OTHER_NAME: Final = frozenset({62, 64})

FOREIGN_DATA: Final = (
    "has values under the cell's keys that no gateway wrote; delete the keys {headgate:NAME}:* or use another cell name"
)

_REPLY_PROBLEMS: Final = {
    "WRONGPASS": "rejects the user or password; correct them in cell.store",
    "NOAUTH": "requires a password; add it to cell.store, as in redis://:PASSWORD@host",
    "NOPERM": "denies its user a command that a cell needs; allow the user all commands on the keys {headgate:*",
    "READONLY": "is a read-only replica; set cell.store to the master or to its sentinels",
    "OOM": "is out of memory; raise its maxmemory or remove other data from it",
    "MISCONF": "rejects writes because it cannot save to disk; fix the disk or set stop-writes-on-bgsave-error no",
    "NOREPLICAS": "rejects writes because it has too few replicas; fix them or lower its min-replicas-to-write",
    "WRONGTYPE": "has keys of another type under the cell's name; use another cell name or another database",
    "MOVED": "is part of a Redis Cluster; set cell.store to a single store or to sentinels",
    "CROSSSLOT": "is part of a Redis Cluster; set cell.store to a single store or to sentinels",
    "CLUSTERDOWN": "is part of a Redis Cluster; set cell.store to a single store or to sentinels",
    "DENIED": "is in protected mode and accepts only local connections; set a password in it and in cell.store",
    "LOADING": "is loading its data; wait until it is ready",
    "BUSY": "is busy with a script; wait until it ends or stop it with SCRIPT KILL",
    "MASTERDOWN": "is a replica that has lost its master; set cell.store to the master or to its sentinels",
}
_TEXT_PROBLEMS: Final = (
    ("invalid password", _REPLY_PROBLEMS["WRONGPASS"]),
    ("without any password configured", "has no password, but cell.store contains one; remove it from cell.store"),
    ("max number of clients", "has reached its connection limit; raise its maxclients"),
    ("DB index", "has no such database; correct the number at the end of cell.store"),
    ("NOPERM", _REPLY_PROBLEMS["NOPERM"]),
    ("unknown command", "does not support a command that a cell needs; use Redis or Valkey 7 or later"),
    ("READONLY", _REPLY_PROBLEMS["READONLY"]),
    ("OOM", _REPLY_PROBLEMS["OOM"]),
    ("user_script", FOREIGN_DATA),
)
"""Text that identifies an error if its first word does not. Errors inside a script have this form."""


class StoreUnusable(Exception):
    """The store cannot be used. The message includes the reason and the next step."""


class MasterReplaced(Exception):
    """The sentinels return another master."""


class StoreTooSlow(Exception):
    """The store responds too slowly to be used."""


STORE_ERRORS: Final = (OSError, TimeoutError, hiredis.HiredisError, StoreUnusable, MasterReplaced, StoreTooSlow)
"""Exceptions that a store can cause. All others are bugs."""


def describe_error(cause: Exception, place: StoreLocation, address: Address | None) -> str:
    """Returns one sentence that describes the problem."""
    who = "the store" if address is None else f"the store at {_format_address(address)}"
    return without_password(f"{who} {_describe(cause, place)}", place)


def without_password(text: str, place: StoreLocation) -> str:
    return text.replace(place.password, "***") if place.password else text


def _describe(cause: Exception, place: StoreLocation) -> str:  # noqa: PLR0911  One return per cause.
    match cause:
        case StoreUnusable():
            return str(cause)
        case MasterReplaced():
            return "is no longer the master; connecting to the new master"
        case StoreTooSlow():
            return "is responding too slowly; it is not used until it recovers"
        case hiredis.ReplyError():
            return _describe_reply(str(cause))
        case hiredis.ProtocolError():
            return "does not use the Redis protocol; correct host and port in cell.store"
        case ssl.SSLCertVerificationError():
            return f"has a certificate that is not trusted ({cause.verify_message}); {_certificate_hint(cause)}"
        case ssl.SSLError():
            return _describe_tls(cause.reason or "unknown reason")
        case socket.gaierror():
            return "has a host name that cannot be resolved; correct the host in cell.store or the machine's DNS"
        case TimeoutError():
            without = ", or not use TLS" if place.tls else ""
            return f"did not respond in time; it may be paused, overloaded or unreachable{without}"
        case ConnectionRefusedError():
            return (
                "refuses connections because no process is listening; start it or correct host and port in cell.store"
            )
        case ConnectionError():
            return f"closed the connection; if this continues and it requires {_closing_hint(place)}"
        case _:
            return f"is unreachable: {str(cause)[:TEXT_MAX] or type(cause).__name__}"


def _closing_hint(place: StoreLocation) -> str:
    if place.tls:
        return "a client certificate, check certificate=FILE and key=FILE in cell.store"
    return "TLS, replace redis with rediss in cell.store"


def _certificate_hint(cause: ssl.SSLCertVerificationError) -> str:
    if cause.verify_code == _X509_EXPIRED:
        return "renew it"
    return "correct the host in cell.store" if cause.verify_code in _X509_OTHER_NAME else "set its CA with ?ca=FILE"


def _describe_tls(reason: str) -> str:
    if "CERTIFICATE_REQUIRED" in reason or "ALERT_HANDSHAKE_FAILURE" in reason:
        return "requires a client certificate; add certificate=FILE and key=FILE to cell.store"
    if "_ALERT_" in reason and ("CERTIFICATE" in reason or reason.endswith("_CA")):
        words = reason.partition("_ALERT_")[2].replace("_", " ").lower()
        return f"rejects the client certificate ({words}); set certificate=FILE in cell.store to one that it trusts"
    return f"rejects TLS ({reason}); if it does not use TLS, replace rediss with redis in cell.store"


def _describe_reply(text: str) -> str:
    known = _REPLY_PROBLEMS.get(text.partition(" ")[0])
    if known is not None:
        return known
    for part, meaning in _TEXT_PROBLEMS:
        if part in text:
            return meaning
    # The rest of the text repeats the command that was sent.
    return f"rejects the command: {text.partition(', with args')[0][:TEXT_MAX]}"


def _format_address(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
