"""Liveness probes that are answered even while the event loop is busy.

A thread accepts the admin listener's connections and peeks at their first bytes. It responds to a plain `GET /health`
and passes every other connection to the event loop unread, so that pages and limits work as usual. Probes therefore
succeed during a long loop iteration and fail once the event loop has stopped.

If the listener uses TLS, the thread also responds to `GET /ready`. Probes then need neither TLS nor a client
certificate.
"""

import contextlib
import re
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

HealthCheck = Callable[[], tuple[int, str]]
"""Returns the HTTP status and body for a probe. Called in the thread."""

FIRST_BYTES_S_MAX: Final = 0.05
"""Maximum time that the thread waits for the first bytes on a connection, in seconds."""
UNDECIDED_MAX: Final = 64
"""Maximum number of connections that have not sent a byte. At this limit, new ones go directly to the event loop."""
HANDED_OVER_MAX: Final = 128
"""Maximum number of connections waiting for the event loop. At this limit, new connections are closed."""
_PROBE_BYTES_MAX: Final = 4096

_PROBE: Final = re.compile(rb"(GET|HEAD) (/health|/ready) HTTP/1\.[01]\r\n((?:[!-9;-~]+:[\t -~]*\r\n)*)\r\n")
_HOST: Final = re.compile(rb"^host:", re.IGNORECASE | re.MULTILINE)
_NOT_PLAIN: Final = re.compile(rb"^(?:content-length|transfer-encoding|upgrade|expect):", re.IGNORECASE | re.MULTILINE)


class HealthThread:
    """Accepts connections on one listening socket."""

    def __init__(
        self,
        listening: socket.socket,
        health: HealthCheck,
        on_accepted: Callable[[], object],
        *,
        ready: HealthCheck | None = None,
        first_bytes_s_max: float = FIRST_BYTES_S_MAX,
    ) -> None:
        """`on_accepted` is called in the thread when `accepted` has a connection for the event loop. Without `ready`,
        requests for `/ready` go to the event loop too.
        """
        self._first_bytes_s_max = first_bytes_s_max
        self._listening = listening
        self._checks = {b"/health": health} if ready is None else {b"/health": health, b"/ready": ready}
        self._on_accepted = on_accepted
        self.accepted: deque[socket.socket] = deque()
        self._undecided: dict[socket.socket, float] = {}
        """Connections that have not sent a byte, oldest first, each with the monotonic time at which to stop waiting
        for it.
        """
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="headgate-health", daemon=True)

    def start(self) -> None:
        self._listening.setblocking(False)  # noqa: FBT003 (positional-only parameter)
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread and closes its sockets, including the listening one."""
        if self._thread.is_alive():
            self._wake.send(b"x")
            self._thread.join()
        self._selector.close()
        for each in (self._listening, self._wake, self._woken, *self._undecided, *self.accepted):
            each.close()
        self._undecided.clear()
        self.accepted.clear()

    # In the thread

    def _run(self) -> None:
        while True:
            ready = [key.fileobj for key, _ in self._selector.select(self._wait_s())]
            if self._woken in ready:
                return
            for each in ready:
                if each is self._listening:
                    self._accept()
                elif isinstance(each, socket.socket):
                    self._decide(each)
            self._hand_over_late()

    def _wait_s(self) -> float | None:
        until = next(iter(self._undecided.values()), None)
        return None if until is None else max(0.0, until - time.monotonic())

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except BlockingIOError:
            return
        except OSError:
            time.sleep(FIRST_BYTES_S_MAX)  # Out of file descriptors; wait until some are freed.
            return
        connection.setblocking(False)  # noqa: FBT003 (positional-only parameter)
        if len(self._undecided) >= UNDECIDED_MAX:
            self._hand_over(connection)
            return
        self._undecided[connection] = time.monotonic() + self._first_bytes_s_max
        self._selector.register(connection, selectors.EVENT_READ)

    def _decide(self, connection: socket.socket) -> None:
        """Peeks at the first bytes and consumes them only if they are a health probe."""
        self._selector.unregister(connection)
        del self._undecided[connection]
        try:
            seen = connection.recv(_PROBE_BYTES_MAX, socket.MSG_PEEK)
        except OSError:
            connection.close()
            return
        probe = _PROBE.fullmatch(seen)
        check = None if probe is None else self._checks.get(probe[2])
        if probe is not None and check and _HOST.search(probe[3]) and not _NOT_PLAIN.search(probe[3]):
            self._answer(connection, len(seen), check, with_body=probe[1] == b"GET")
        else:
            self._hand_over(connection)

    def _answer(self, connection: socket.socket, size: int, check: HealthCheck, *, with_body: bool) -> None:
        status, words = check()
        body = f"{words}\n".encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        with connection, contextlib.suppress(OSError):
            connection.recv(size)  # Closing with unread bytes would reset the connection.
            connection.send(head.encode() + (body if with_body else b""))
            connection.shutdown(socket.SHUT_WR)

    def _hand_over_late(self) -> None:
        now = time.monotonic()
        while self._undecided and next(iter(self._undecided.values())) <= now:
            connection = next(iter(self._undecided))
            del self._undecided[connection]
            self._selector.unregister(connection)
            self._hand_over(connection)

    def _hand_over(self, connection: socket.socket) -> None:
        if len(self.accepted) >= HANDED_OVER_MAX:
            connection.close()
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.accepted.append(connection)
        # The event loop may be closing.
        with contextlib.suppress(RuntimeError):
            self._on_accepted()
