"""Which loopback port is free?"""

import socket


def free_port() -> int:
    """A port that nobody listened on a moment ago.

    Another process may take it before its user does; a process that cannot bind ends, and its start fails loudly.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def free_ports(count: int) -> list[int]:
    """So many free ports that follow each other."""
    while True:
        first = free_port()
        sockets: list[socket.socket] = []
        try:
            for number in range(count):
                probe = socket.socket()
                sockets.append(probe)
                probe.bind(("127.0.0.1", first + number))
        except OSError:
            continue
        else:
            return [first + number for number in range(count)]
        finally:
            for probe in sockets:
                probe.close()
