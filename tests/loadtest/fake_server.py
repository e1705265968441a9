"""Fake engine for measuring the load generator by hand.

`python -m tests.loadtest.fake_server PORT PACE_S` starts an engine that streams the requested number of tokens, one
every PACE_S seconds.
"""

import asyncio
import socket
import sys

from testing.fake_engine import Behaviour, FakeEngine


async def serve(port: int, pace_s: float) -> None:
    async with FakeEngine(port=port) as engine:
        engine.behaviour = Behaviour(pace_s=pace_s)
        assert engine._server is not None
        for listener in engine._server.sockets:
            # Connections inherit TCP_NODELAY. asyncio sets it only on sockets with an explicit protocol number. Without
            # it, the first token is held back for 40 ms until the response headers are acknowledged.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
