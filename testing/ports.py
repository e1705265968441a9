"""Finds free loopback ports.

Ports are allocated below 32768, because the system uses ports from there on for outgoing connections. A port belongs to
the process that asked for it until that process ends: the process locks one byte of a file that all test runs on the
machine share. Without the lock, a test may mistake the server of another run, which listened on the port a moment ago,
for its own.
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
    """A port that nobody listens on. This process gives it to nobody else before it has given all others."""
    return free_ports(1)[0]


def free_ports(number: int) -> list[int]:
    """So many free ports that follow each other."""
    while True:
        ports = [_FIRST + offset % (_PAST - _FIRST) for offset in islice(_OFFSETS, number)]
        if ports[-1] - ports[0] == number - 1 and all(_is_ours(port) and _is_free(port) for port in ports):
            return ports


def keep_port(port: int = 0) -> socket.socket:
    """Binds a loopback port (any if 0) for a server of the test that stops and listens again on the same port.

    The socket never listens. While it is open, connections are refused unless the server listens, and the system gives
    the port to no other process.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", port))
    return kept


def _is_ours(port: int) -> bool:
    """Whether this process holds the lock of a port, newly or already."""
    try:
        fcntl.lockf(_locks(os.getpid()), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except BlockingIOError:
        return False
    return True


@cache
def _locks(_process: int) -> int:
    """The lock file. A forked process opens it again, because it must not count as its parent."""
    return os.open(Path(tempfile.gettempdir()) / f"headgate-test-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT, 0o600)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
