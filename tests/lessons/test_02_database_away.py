"""An unreachable database does not make keys invalid.

Callers send requests while the database is stopped, paused or killed. A paused database keeps its connections open and
sends nothing. A known key works the whole time. An unknown key may be valid, so it gets 503 with `Retry-After` and
never 401.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from testing.gateway import GatewayInLoop
from testing.postgres import Postgres, postgres
from tests.ledger.databases import migrated, new_database
from tests.ledger.test_gateway import admin, asked, fresh, made, running

pytestmark = pytest.mark.process

CALLERS = 8
ANSWERS = 4 * CALLERS
"""Number of responses to requests with an unknown key while the database is unreachable."""
WAYS: dict[str, tuple[Callable[[Postgres], None], Callable[[Postgres], None]]] = {
    "stopped": (Postgres.shut_down, Postgres.restart),
    "paused": (Postgres.pause, Postgres.resume),
    "killed": (Postgres.kill, Postgres.restart),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """Server for the tests in this file. Each test has its own database and leaves the server running."""
    with postgres(options=("fsync=off",)) as running:
        yield running


@asynccontextmanager
async def asking(gateway: GatewayInLoop, key: str) -> AsyncIterator[Counter[int]]:
    """Send requests with this key from several callers and yield the number of responses per status."""
    seen, done = Counter[int](), asyncio.Event()

    async def call() -> None:
        while not done.is_set():
            seen[(await asked(gateway, key))[0]] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(call())
        try:
            yield seen
        finally:
            done.set()


@pytest.mark.parametrize("way", WAYS)
async def test_known_keys_work_and_unknown_keys_get_503_during_an_outage(
    way: str, tmp_path: Path, server: Postgres
) -> None:
    go_away, come_back = WAYS[way]
    async with running(await migrated(await new_database(server)), tmp_path) as gateway:
        await fresh(gateway)
        known = await made(gateway)
        async with asking(gateway, known) as seen:
            go_away(server)
            # Until the directory replica becomes stale, a key that is not in it is known to be invalid.
            await gateway.wait_for_status(lambda status: not status["database"]["fresh"])
            async with asking(gateway, "hg-one-that-nobody-here-knows") as unknown:
                async with asyncio.timeout(60):
                    while unknown.total() < ANSWERS:
                        await asyncio.sleep(0.01)
                    # On a busy machine, callers without a valid key get most of the answers.
                    while seen.total() <= CALLERS:
                        await asyncio.sleep(0.01)
            status, body, headers = await asked(gateway, "hg-another")
            before = seen.total()
            come_back(server)
            await gateway.wait_for_status(lambda status: status["database"]["fresh"])
        late = await admin(gateway, "keys/create", key="acme/search/late")
        after = [(await asked(gateway, key))[0] for key in (known, late[1]["secret"], "hg-another")]

    assert set(seen) == {200}, "a known key was rejected"
    assert before > CALLERS, "no request was sent during the outage"
    assert set(unknown) == {503}
    assert (status, body["error"]["code"]) == (503, "key_unverified")
    assert int(headers["Retry-After"]) >= 1
    assert after == [200, 200, 401]


async def test_gateway_started_during_an_outage_does_not_report_keys_as_invalid(
    tmp_path: Path, server: Postgres
) -> None:
    url = await migrated(await new_database(server))
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    async with running(url, tmp_path / "before") as gateway:
        await fresh(gateway)
        known = await made(gateway)
    server.shut_down()
    async with running(url, tmp_path / "after") as gateway:
        away = (await asked(gateway, known))[0]
        filed = (await asked(gateway, "hg-filed"))[0]
        server.restart()
        await gateway.wait_for_status(lambda status: status["database"]["fresh"])
        back = (await asked(gateway, known))[0]

    assert (away, filed, back) == (503, 200, 200)
