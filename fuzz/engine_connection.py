"""Fuzz target: bytes from an engine give a response or a fault, and never answer a second request."""

import asyncio

from fuzz.cuts import cut
from fuzz.pipes import Pipe
from headgate.engines.dialects import DIALECTS
from headgate.engines.engine_connection import EngineConnection
from headgate.engines.http_engine import turn_budget
from headgate.ports.engine import EngineFault

_loop = asyncio.new_event_loop()
_DIALECT = DIALECTS["vllm"]


def one_input(data: bytes) -> None:
    whole = _loop.run_until_complete(_outcome([data]))
    pieces = _loop.run_until_complete(_outcome(cut(data)))
    assert whole == pieces


async def _outcome(pieces: list[bytes]) -> tuple[object, ...]:
    """Status, content type and body of the response, and whether it was truncated; or a marker if there was none."""
    freed: list[EngineConnection] = []
    connection, pipe = EngineConnection(freed.append, lambda _: None, turn_budget()), Pipe()
    connection.connection_made(pipe)  # type: ignore[arg-type]
    asking = asyncio.ensure_future(_ask(connection))
    await asyncio.sleep(0)
    for piece in pieces:
        if pipe.closed:
            break
        connection.data_received(piece)
        await asyncio.sleep(0)
    connection.connection_lost(None)
    outcome = await asking
    assert not freed or outcome[-1] is False, "a connection whose answer broke off is not used again"
    return outcome


async def _ask(connection: EngineConnection) -> tuple[object, ...]:
    try:
        answer = await connection.ask([b"question"], _DIALECT)
    except EngineFault:
        return ("no answer", True)
    assert answer.content_type.isprintable()
    assert answer.content_type.isascii()
    body = b""
    try:
        while data := await answer.read():
            body += data
    except EngineFault:
        # The received part of a truncated response depends on the split.
        return (answer.status, answer.content_type, True)
    return (answer.status, answer.content_type, body, False)
