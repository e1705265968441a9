"""What can the generator be measured against by hand?

`python -m tests.loadtest.fake_server PORT PACE_S` is an engine that sends as many tokens as are asked for, each after
so many seconds.
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
            # Connections inherit it. asyncio sets it only on sockets that name their protocol; without it the first
            # token waits 40 ms for the acknowledgement of the head.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
