"""A loopback TCP server that sends raw bytes, for simulating misbehaving engines."""

import asyncio
from typing import Self


class RawServer:
    """Handles each connection with `serve`. Closing the server closes its connections."""

    buffer_bytes = 65_536
    """Size of the read buffer, in bytes."""

    def __init__(self) -> None:
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=self.buffer_bytes)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self.serve(reader, writer)
        except asyncio.CancelledError:
            # Cancelled by `__aexit__`. Without this, asyncio's server would log the cancelled task.
            pass
        finally:
            writer.close()
