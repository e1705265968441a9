"""Which loopback port is free?"""

import os
import socket
from itertools import count, islice

# Where the system takes ports for whoever connects or listens without naming one begins at 32768. Those given here lie
# below, and each run of tests begins elsewhere: a port that was free a moment ago is then not taken by somebody else
# before its user listens on it.
_FIRST, _PAST = 20_000, 32_000
_OFFSETS = count(os.getpid() * 997)


def free_port() -> int:
    """A port that nobody listens on, and that is given to nobody else for as long as there are others."""
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
