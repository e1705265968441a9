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
