"""Does a database that has gone make anybody's key wrong?

Callers go on asking while it is stopped as an administrator would, paused so that connections stay open and nothing
comes back, and killed. A key that is known works all the time. A key that nobody here knows yet may be right: it is
answered with 503 and the time to try again, and never with 401.
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
"""So many callers with an unknown key are answered while the database is away."""
WAYS: dict[str, tuple[Callable[[Postgres], None], Callable[[Postgres], None]]] = {
    "stopped": (Postgres.halt, Postgres.restart),
    "paused": (Postgres.pause, Postgres.resume),
    "killed": (Postgres.kill, Postgres.restart),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """One for the tests of this file, each of which has a database of its own and leaves the server running."""
    with postgres(options=("fsync=off",)) as running:
        yield running


@asynccontextmanager
async def asking(gateway: GatewayInLoop, key: str) -> AsyncIterator[Counter[int]]:
    """Callers that ask again and again with this key; how often they got which status."""
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
async def test_known_keys_work_all_the_time_and_new_ones_are_told_to_come_again(
    way: str, tmp_path: Path, server: Postgres
) -> None:
    go_away, come_back = WAYS[way]
    async with running(await migrated(await new_database(server)), tmp_path) as gateway:
        await fresh(gateway)
        known = await made(gateway)
        async with asking(gateway, known) as seen:
            go_away(server)
            # Until the copy is known to be old, a key that is not in it is still known not to exist.
            await gateway.until(lambda status: not status["database"]["fresh"])
            async with asking(gateway, "hg-one-that-nobody-here-knows") as unknown:
                async with asyncio.timeout(60):
                    while unknown.total() < ANSWERS:
                        await asyncio.sleep(0.01)
            status, body, headers = await asked(gateway, "hg-another")
            before = seen.total()
            come_back(server)
            await gateway.until(lambda status: status["database"]["fresh"])
        late = await admin(gateway, "keys/create", key="acme/search/late")
        after = [(await asked(gateway, key))[0] for key in (known, late[1]["secret"], "hg-another")]

    assert set(seen) == {200}, "a known key was refused"
    assert before > CALLERS, "nobody asked while it was away"
    assert set(unknown) == {503}
    assert (status, body["error"]["code"]) == (503, "key_unverified")
    assert int(headers["Retry-After"]) >= 1
    assert after == [200, 200, 401]


async def test_a_gateway_that_starts_while_it_is_away_calls_nobody_wrong(tmp_path: Path, server: Postgres) -> None:
    url = await migrated(await new_database(server))
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    async with running(url, tmp_path / "before") as gateway:
        await fresh(gateway)
        known = await made(gateway)
    server.halt()
    async with running(url, tmp_path / "after") as gateway:
        away = (await asked(gateway, known))[0]
        filed = (await asked(gateway, "hg-filed"))[0]
        server.restart()
        await gateway.until(lambda status: status["database"]["fresh"])
        back = (await asked(gateway, known))[0]

    assert (away, filed, back) == (503, 200, 200)
