"""Why could an engine not be asked, and was that its doing or ours?"""

import errno
import os
import socket
import ssl
from typing import Final

from headgate.model.fault import Fault

_OWN_ERRORS: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT, errno.EADDRNOTAVAIL}
)
"""Errors of this process or its host, not of the engine: out of descriptors, memory, disk or local ports."""
_NO_SUCH_HOST: Final = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})
"""What a resolver that works says of a name that does not exist. Anything else means that it does not work."""


def fault_of(error: BaseException | None, otherwise: Fault) -> Fault:
    """Whether an error is this process's own, for want of descriptors, memory, ports or name resolution."""
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
    """Why an engine was not heard, without its address: the reason may reach callers, who need not know it."""
    match error:
        case None:
            return "the connection was closed"
        case socket.gaierror():
            return "its host name does not resolve"
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
