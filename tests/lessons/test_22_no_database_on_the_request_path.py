"""No request waits for the database.

The tests record every call to asyncpg. A context variable that is set when a request arrives is inherited by all tasks
started for it, so it identifies calls made for a request. A database that accepts connections but never responds does
not delay requests either.
"""

import asyncio
import contextlib
import contextvars
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headgate.edge.app import GatewayApp
from headgate.edge.client import Client
from testing.builds import IS_COMPILED, REPLACES_A_METHOD
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import GatewayInLoop, chat
from testing.stalls import rerun_if_stalled
from tests.lessons.ledgers import a_gateway, written

_for_a_request: contextvars.ContextVar[bool] = contextvars.ContextVar("for a request", default=False)
METHODS = ("execute", "executemany", "fetch", "fetchrow", "fetchval", "copy_records_to_table", "copy_to_table")


@contextlib.contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], list[str]]]:
    """Record database calls made for a request, and all other database calls.

    This patches asyncpg itself, so that calls from every part of the gateway are recorded.
    """
    guilty: list[str] = []
    others: list[str] = []

    def watch(name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(call)
        async def watching(*values: Any, **named: Any) -> Any:
            (guilty if _for_a_request.get() else others).append(name)
            return await call(*values, **named)

        return watching

    with monkeypatch.context() as patch:
        for name in METHODS:
            patch.setattr(asyncpg.Connection, name, watch(name, getattr(asyncpg.Connection, name)))
        patch.setattr(asyncpg, "connect", watch("connect", asyncpg.connect))
        patch.setattr(GatewayApp, "__call__", _marked(GatewayApp.__call__))
        yield guilty, others


def _marked(take: Callable[[GatewayApp, Client], Awaitable[None]]) -> Callable[[GatewayApp, Client], Awaitable[None]]:
    async def marking(door: GatewayApp, client: Client) -> None:
        _for_a_request.set(True)
        try:
            await take(door, client)
        finally:
            _for_a_request.set(False)

    return marking


async def ask_everything(gateway: GatewayInLoop, engine: FakeEngine) -> None:
    """Send requests that cover each path through the gateway."""
    engine.script.extend([Behaviour(tokens=3), Behaviour(status=500), Behaviour(tokens=3), Behaviour(cut_after=1)])
    bodies = (chat(stream=True), chat(), chat(), chat(stream=True), chat(model="unknown"), chat(n=0), chat())
    for body in bodies:
        async with gateway.post(body) as answer:
            with contextlib.suppress(Exception):
                await answer.read()
    for path in ("/v1/models", "/v1/usage"):
        async with gateway.http.get(gateway.url + path) as answer:
            await answer.read()


@pytest.mark.skipif(IS_COMPILED, reason=REPLACES_A_METHOD)
@pytest.mark.process
async def test_no_database_call_is_made_for_a_request(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(monkeypatch) as (guilty, others):
        async with FakeEngine() as engine:
            async with a_gateway(url, tmp_path, engine.url) as gateway:
                await ask_everything(gateway, engine)
                rows = await written(gateway, 4)

    assert len(rows) >= 4
    assert guilty == []
    # This shows that the recorder works: the ledger rows were written by these calls.
    assert "copy_to_table" in others


@pytest.mark.skipif(IS_COMPILED, reason=REPLACES_A_METHOD)
@pytest.mark.process
async def test_recorder_detects_a_database_call_made_for_a_request(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks the recorder itself with a request handler that queries the database in a separate task."""
    async with FakeEngine() as engine:
        take = GatewayApp._handle

        async def looking(door: GatewayApp, *values: Any) -> None:
            async def look() -> None:
                link = await asyncpg.connect(url)
                await link.fetchval("select 1")
                await link.close()

            await asyncio.create_task(look())
            await take(door, *values)

        monkeypatch.setattr(GatewayApp, "_handle", looking)
        with watched(monkeypatch) as (guilty, _):
            async with a_gateway(url, tmp_path, engine.url) as gateway:
                async with gateway.post(chat()) as answer:
                    await answer.read()

    assert guilty == ["connect", "fetchval"]


@asynccontextmanager
async def a_mute_database() -> AsyncIterator[str]:
    """Database that accepts connections but neither reads nor responds."""
    held: list[asyncio.StreamWriter] = []

    async def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield f"postgresql://postgres@127.0.0.1:{server.sockets[0].getsockname()[1]}/postgres"
    finally:
        server.close()
        for writer in held:
            writer.transport.abort()


@pytest.mark.timing
@rerun_if_stalled
async def test_unresponsive_database_does_not_delay_requests(tmp_path: Path) -> None:
    took: list[float] = []
    async with a_mute_database() as url, FakeEngine() as engine:
        async with a_gateway(url, tmp_path, engine.url) as gateway:
            for _ in range(60):
                began = time.perf_counter()
                async with gateway.post(chat(stream=True)) as answer:
                    assert answer.status == 200
                    await answer.read()
                took.append(time.perf_counter() - began)
            # The row is written shortly after the caller receives its response.
            status = (await gateway.wait_for_status(lambda status: status["ledger"]["rows_waiting"] >= 60))["ledger"]

    assert sorted(took)[len(took) // 2] < 0.1
    assert max(took) < 1.0
    assert status["rows_waiting"] == 60
    assert status["rows_lost"] == 0
