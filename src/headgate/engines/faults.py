"""Classifies connection errors: the reason, and whether the engine or this process is the cause."""

import errno
import os
import socket
import ssl
from typing import Final

from headgate.model.endpoint import NAME_UNRESOLVED
from headgate.model.fault import Fault

_OWN_ERRORS: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT, errno.EADDRNOTAVAIL}
)
"""Errors of this process or its host, not of the engine: out of descriptors, memory, disk or local ports."""
_NO_SUCH_HOST: Final = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})
"""Error codes of a working resolver for a name that does not exist. Any other code means that the resolver failed."""


def fault_of(error: BaseException | None, otherwise: Fault) -> Fault:
    """The fault behind an error: `GATEWAY` if this process lacks descriptors, memory, ports or name resolution."""
    match error:
        case socket.gaierror(errno=int(number)):
            return Fault.CONNECTION if number in _NO_SUCH_HOST else Fault.GATEWAY
        case OSError(errno=int(number)) if number in _OWN_ERRORS:
            return Fault.GATEWAY
        case MemoryError():
            return Fault.GATEWAY
        case _:
            return otherwise


def why(error: BaseException | None) -> str:
    """Reason for a failed request to an engine, without its address, because callers may see the reason."""
    match error:
        case None:
            return "the connection was closed"
        case socket.gaierror():
            return NAME_UNRESOLVED
        case ssl.SSLError():
            return f"no TLS with it ({error.reason or 'handshake failed'})"
        case TimeoutError(errno=None):
            return "no answer in time"
        case OSError(errno=int(number)):
            return os.strerror(number).lower()
        case OSError():
            return "the connection was lost"
        case _:
            return type(error).__name__


def broken_off(error: Exception | None) -> str:
    return f"the engine's answer broke off: {'the connection was closed' if error is None else why(error)}"


def unanswered(error: Exception | None) -> str:
    reason = "it closed the connection without an answer" if error is None else why(error)
    return f"the engine could not be asked: {reason}"
