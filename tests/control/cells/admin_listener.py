"""Admin listener of one process, for tests of the controller's client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from aiohttp import web

from headgate.control.cells.messages import ProcessReport
from headgate.ports.tls import ServerTlsOptions, server_context

REPORT = ProcessReport("s1", 7, 1, 1, 250_000)


class AdminListener:
    """Responds with the same report to every request. Records keys and bodies."""

    def __init__(self) -> None:
        self.keys: list[str | None] = []
        self.bodies: list[dict[str, Any]] = []
        self.rejected_field = ""
        self.url = ""

    async def report(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("authorization"))
        self.bodies.append(await request.json())
        if self.rejected_field in self.bodies[-1]:
            return web.json_response({"error": {"message": "unknown field"}}, status=400)
        return web.json_response(asdict(REPORT))

    @asynccontextmanager
    async def run(self, tls: ServerTlsOptions | None = None) -> AsyncIterator["AdminListener"]:
        app = web.Application()
        app.router.add_post("/admin/v1/shares/{action}", self.report)
        runner = web.AppRunner(app)
        await runner.setup()
        context = None if tls is None else server_context(tls)
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        [address] = runner.addresses
        self.url = f"http{'' if tls is None else 's'}://127.0.0.1:{address[1]}"
        try:
            yield self
        finally:
            await runner.cleanup()
