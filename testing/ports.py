"""Allocation of free loopback ports.

Ports are allocated below 32768 because the system uses higher ports for outgoing connections. A port belongs to the
process that allocated it until that process exits. The process locks one byte of a file that all test runs on the
machine share. Without the lock, a test might mistake another run's server, which has just started listening on the
port, for its own.
"""

import fcntl
import os
import socket
import tempfile
from functools import cache
from itertools import count, islice
from pathlib import Path

_FIRST, _PAST = 20_000, 32_000
_OFFSETS = count(os.getpid() * 997)


def free_port() -> int:
    """A free port. This process does not allocate the same port again until it has used all others."""
    return free_ports(1)[0]


def free_ports(number: int) -> list[int]:
    """`number` consecutive free ports."""
    while True:
        ports = [_FIRST + offset % (_PAST - _FIRST) for offset in islice(_OFFSETS, number)]
        if ports[-1] - ports[0] == number - 1 and all(_is_ours(port) and _is_free(port) for port in ports):
            return ports


def reserve_port(port: int = 0) -> socket.socket:
    """Bind a loopback port (any port if 0) for a test server that stops and later listens on the same port again.

    The socket never listens. While it is open, connections are refused unless the server is listening, and the system
    does not give the port to another process.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", port))
    return kept


def _is_ours(port: int) -> bool:
    """Whether this process holds the lock for a port, acquiring it if necessary."""
    try:
        fcntl.lockf(_locks(os.getpid()), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except BlockingIOError:
        return False
    return True


@cache
def _locks(_process: int) -> int:
    """The lock file. A forked process opens it again because it needs its own locks."""
    return os.open(Path(tempfile.gettempdir()) / f"headgate-test-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT, 0o600)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
