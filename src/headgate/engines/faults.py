"""Classification of connection errors: their reason, and whether the engine or this process is at fault."""

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
"""Errors caused by this process or its host, such as running out of file descriptors, memory, disk space or local
ports.
"""
_NO_SUCH_HOST: Final = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})
"""Error codes that a working resolver returns for a name that does not exist.

Any other code means that the resolver failed.
"""


def fault_of(error: BaseException | None, default: Fault) -> Fault:
    """Returns the fault behind an error: `GATEWAY` if this process is out of a resource or cannot resolve names."""
    match error:
        case socket.gaierror(errno=int(number)):
            return Fault.CONNECTION if number in _NO_SUCH_HOST else Fault.GATEWAY
        case OSError(errno=int(number)) if number in _OWN_ERRORS:
            return Fault.GATEWAY
        case MemoryError():
            return Fault.GATEWAY
        case _:
            return default


def failure_reason(error: BaseException | None) -> str:
    """Returns why a request to an engine failed, without the engine's address, because callers may see the reason."""
    match error:
        case None:
            return "the connection was closed"
        case socket.gaierror():
            return NAME_UNRESOLVED
        case ssl.SSLError():
            return f"TLS failed ({error.reason or 'handshake failed'})"
        case TimeoutError(errno=None):
            return "no response in time"
        case OSError(errno=int(number)):
            return os.strerror(number).lower()
        case OSError():
            return "the connection was lost"
        case _:
            return type(error).__name__


def broken_off_message(error: Exception | None) -> str:
    reason = "the connection was closed" if error is None else failure_reason(error)
    return f"the engine's response was truncated: {reason}"


def unanswered_message(error: Exception | None) -> str:
    reason = "the connection was closed without a response" if error is None else failure_reason(error)
    return f"the request to the engine failed: {reason}"
