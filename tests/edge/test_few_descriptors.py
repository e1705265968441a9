"""Tests for client connections when file descriptors are nearly exhausted."""

from fuzz.pipes import Pipe
from headgate.edge.connection import Connection
from headgate.edge.connections import Connections
from headgate.edge.options import EdgeLimits
from headgate.ports import file_descriptors
from tests.security.test_work_per_turn import App


class Socket:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor


class PipeAt(Pipe):
    """A transport whose socket has the given file descriptor."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.socket = Socket(descriptor)

    def get_extra_info(self, name: str, default: object = None) -> object:
        del default
        assert name == "socket"
        return self.socket


def accept(connections: Connections, descriptor: int) -> tuple[Connection, PipeAt]:
    connection, pipe = connections(), PipeAt(descriptor)
    connection.connection_made(pipe)  # pyright: ignore[reportArgumentType]
    return connection, pipe


async def test_connection_using_one_of_the_last_descriptors_is_closed() -> None:
    connections = Connections(App(), EdgeLimits(), lambda _id, _refused: None)
    known, kept = accept(connections, 10)
    assert connections.mark_authenticated(known, None)

    _, closed = accept(connections, file_descriptors.limit() - 1)

    assert closed.closed
    assert not kept.closed
    assert len(connections) == 1


async def test_unauthenticated_connection_is_closed_in_favour_of_a_new_one() -> None:
    connections = Connections(App(), EdgeLimits(), lambda _id, _refused: None)
    _, oldest = accept(connections, 10)

    _, newest = accept(connections, file_descriptors.limit() - 1)

    assert oldest.closed
    assert not newest.closed
