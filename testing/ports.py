"""Which loopback port is free?"""

import os
import socket
from itertools import count, islice

# The system gives ports from 32768 on to whoever connects, or listens without naming one. Those given here lie below,
# and each process begins elsewhere: another will hardly take what was free a moment ago before its user listens on it.
_FIRST, _PAST = 20_000, 32_000
_OFFSETS = count(os.getpid() * 997)


def free_port() -> int:
    """A port that nobody listens on. This process gives it to nobody else before it has given all others."""
    return free_ports(1)[0]


def free_ports(number: int) -> list[int]:
    """So many free ports that follow each other."""
    while True:
        ports = [_FIRST + offset % (_PAST - _FIRST) for offset in islice(_OFFSETS, number)]
        if ports[-1] - ports[0] == number - 1 and all(_is_free(port) for port in ports):
            return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
