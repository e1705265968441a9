"""Does any request wait for the database?

Every call to asyncpg is watched. A mark that is set where a request comes in is inherited by all that is begun for it,
so a call that carries it was made on a request's behalf, in its own task or in one that it started. And a database that
takes connections and never says a word holds up nobody.
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

from headgate.edge.client import Client
from headgate.edge.door import Door
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import GatewayInLoop, chat
from testing.stalls import again_if_stalled
from tests.lessons.ledgers import a_gateway, written

_for_a_request: contextvars.ContextVar[bool] = contextvars.ContextVar("for a request", default=False)
METHODS = ("execute", "executemany", "fetch", "fetchrow", "fetchval", "copy_records_to_table", "copy_to_table")


@contextlib.contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], list[str]]]:
    """Calls that were made for a request, and all others.

    It patches asyncpg itself on purpose, so that a call is seen whichever part of the gateway makes it.
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
        patch.setattr(Door, "__call__", _marked(Door.__call__))
        yield guilty, others


def _marked(take: Callable[[Door, Client], Awaitable[None]]) -> Callable[[Door, Client], Awaitable[None]]:
    async def marking(door: Door, client: Client) -> None:
        _for_a_request.set(True)
        try:
            await take(door, client)
        finally:
            _for_a_request.set(False)

    return marking


async def ask_everything(gateway: GatewayInLoop, engine: FakeEngine) -> None:
    """Each way a request can go."""
    engine.script.extend([Behaviour(tokens=3), Behaviour(status=500), Behaviour(tokens=3), Behaviour(cut_after=1)])
    bodies = (chat(stream=True), chat(), chat(), chat(stream=True), chat(model="unknown"), chat(n=0), chat())
    for body in bodies:
        async with gateway.post(body) as answer:
            with contextlib.suppress(Exception):
                await answer.read()
    for path in ("/v1/models", "/v1/usage"):
        async with gateway.http.get(gateway.url + path) as answer:
            await answer.read()


@pytest.mark.process
async def test_no_call_to_the_database_is_made_for_a_request(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(monkeypatch) as (guilty, others):
        async with FakeEngine() as engine:
            async with a_gateway(url, tmp_path, engine.url) as gateway:
                await ask_everything(gateway, engine)
                rows = await written(gateway, 4)

    assert len(rows) >= 4
    assert guilty == []
    # It does watch: the rows came in by these.
    assert "copy_to_table" in others


@pytest.mark.process
async def test_one_that_is_made_is_found_out(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch itself: a door that looks into the database, in a task of its own, is seen."""
    async with FakeEngine() as engine:
        take = Door._take

        async def looking(door: Door, *values: Any) -> None:
            async def look() -> None:
                link = await asyncpg.connect(url)
                await link.fetchval("select 1")
                await link.close()

            await asyncio.create_task(look())
            await take(door, *values)

        monkeypatch.setattr(Door, "_take", looking)
        with watched(monkeypatch) as (guilty, _):
            async with a_gateway(url, tmp_path, engine.url) as gateway:
                async with gateway.post(chat()) as answer:
                    await answer.read()

    assert guilty == ["connect", "fetchval"]


@asynccontextmanager
async def a_mute_database() -> AsyncIterator[str]:
    """It takes connections, reads nothing and says nothing."""
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
@again_if_stalled
async def test_a_database_that_never_answers_holds_up_nobody(tmp_path: Path) -> None:
    took: list[float] = []
    async with a_mute_database() as url, FakeEngine() as engine:
        async with a_gateway(url, tmp_path, engine.url) as gateway:
            for _ in range(60):
                began = time.perf_counter()
                async with gateway.post(chat(stream=True)) as answer:
                    assert answer.status == 200
                    await answer.read()
                took.append(time.perf_counter() - began)
            # The row is written shortly after the caller receives its answer.
            status = (await gateway.until(lambda status: status["ledger"]["rows_waiting"] >= 60))["ledger"]

    assert sorted(took)[len(took) // 2] < 0.1
    assert max(took) < 1.0
    assert status["rows_waiting"] == 60
    assert status["rows_lost"] == 0
