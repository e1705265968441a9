"""Fuzz target: bytes from a client either form requests, one at a time, or end the connection.

The first complete request is the same however the reads are split. Later bytes may be accepted or not, depending on
whether the first request has been answered by then.
"""

import asyncio
import re
from dataclasses import dataclass, field

from fuzz.cuts import cut
from fuzz.pipes import Pipe
from headgate.edge.client import BodyTooLarge, Client, ClientDisconnected
from headgate.edge.connections import Connections
from headgate.edge.options import EdgeLimits

LIMITS = EdgeLimits(header_bytes_max=2048, header_count_max=16, body_bytes_max=512)

_FINAL_ANSWER = re.compile(rb"HTTP/1\.1 [2-5]\d\d ")
_loop = asyncio.new_event_loop()


def one_input(data: bytes) -> None:
    whole = _loop.run_until_complete(_seen([data]))
    pieces = _loop.run_until_complete(_seen(cut(data)))
    assert whole.requests[:1] == pieces.requests[:1]


@dataclass
class _App:
    """Answers and records every request."""

    requests: list[tuple[object, ...]] = field(default_factory=list)
    heads: int = 0
    open: int = 0

    async def __call__(self, client: Client) -> None:
        self.heads += 1
        self.open += 1
        assert self.open == 1, "one request at a time"
        try:
            body: bytes | None = await client.body(LIMITS.body_bytes_max)
        except BodyTooLarge:
            body = None
        except ClientDisconnected:
            return
        finally:
            self.open -= 1
        assert body is None or len(body) <= LIMITS.body_bytes_max
        assert len(client.headers) <= LIMITS.header_count_max
        # Offers of another protocol are ignored, whatever the header name.
        headers = {name: value for name, value in client.headers.items() if b"upgrade" not in name}
        self.requests.append((client.method, client.path, headers, body))
        client.reply(200, [], b"ok")


async def _seen(pieces: list[bytes]) -> _App:
    app = _App()
    connections = Connections(app, LIMITS, lambda _id, _refused: None)
    connection, pipe = connections(), Pipe()
    connection.connection_made(pipe)  # type: ignore[arg-type]
    for piece in pieces:
        if pipe.closed:
            break
        connection.data_received(piece)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    connection.connection_lost(None)
    await asyncio.gather(*connections.tasks)
    answers = len(_FINAL_ANSWER.findall(pipe.written))
    assert answers <= app.heads + 1, "as many answers as requests, and one refusal"
    return app
