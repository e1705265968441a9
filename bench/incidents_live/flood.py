"""Send short streamed requests over many connections, as fast as the gateway responds, until stopped.

    python -m bench.incidents_live.flood PORT CONNECTIONS FILE

The file contains one HTTP request. Each connection sends it again as soon as the response is complete. The process
looks only for the end of each response, so it needs far less CPU time per request than the gateway.
"""

import asyncio
import sys
from pathlib import Path
from typing import cast

import uvloop

_ENDS = (b"\r\n0\r\n\r\n", b"}")
"""Last bytes of a chunked response and of an error response."""


class FloodConnection(asyncio.Protocol):
    def __init__(self, request: bytes) -> None:
        self._request = request
        self._last = b""
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            "asyncio.Transport", transport
        )  # The uvloop transport implements the interface without being a subclass of it.
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._last = (self._last + data)[-16:]
        if self._last.endswith(_ENDS):
            self._last = b""
            self._transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.lost.set_result(None)


async def _call_for_ever(port: int, request: bytes) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            _, caller = await loop.create_connection(lambda: FloodConnection(request), "127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
            continue
        await caller.lost


async def _main(port: int, connections: int, request: bytes) -> None:
    await asyncio.gather(*(_call_for_ever(port, request) for _ in range(connections)))


if __name__ == "__main__":
    uvloop.run(_main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]).read_bytes()))
