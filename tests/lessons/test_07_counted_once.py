"""Ledger rows and sums are correct even if database connections break.

If an update of unknown outcome is repeated, counters may count twice; if it is not, they may lose data. In this test a
gateway serves requests while a proxy closes its database connections at random times, including during a commit.
"""

import asyncio
import random
from collections import Counter
from pathlib import Path

import asyncpg
import pytest

from testing.fake_engine import Behaviour, FakeEngine
from testing.fault_proxy import Fault, FaultProxy
from testing.gateway import chat
from tests.lessons.ledgers import a_gateway, written

pytestmark = pytest.mark.process

REQUESTS, TOKENS = 100, 3
COMMIT = b"Q\0\0\0\x0cCOMMIT"


async def test_rows_and_sums_match_the_requests_despite_broken_connections(url: str, tmp_path: Path) -> None:
    chance = random.Random(11)
    async with (
        FakeEngine() as engine,
        FaultProxy(int(url.rpartition(":")[2].split("/")[0])) as proxy,
    ):
        engine.behaviour = Behaviour(tokens=TOKENS)
        through = f"postgresql://postgres@127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}"
        async with a_gateway(through, tmp_path, engine.url) as gateway:
            cuts = asyncio.create_task(_cut(proxy, chance))
            for number in range(REQUESTS):
                async with gateway.post(chat(f"{number}", stream=number % 2 == 0)) as answer:
                    assert answer.status == 200
                    await answer.read()
                await asyncio.sleep(0.01)
            cuts.cancel()
            proxy.fault = Fault()
            await gateway.wait_for_status(lambda status: not status["ledger"]["rows_waiting"])
            rows = await written(gateway, 0)
            status = (await gateway.status())["ledger"]
        link = await asyncpg.connect(url)
        sums = await link.fetchrow("select sum(requests), sum(attempts), sum(tokens_out) from headgate.usage_daily")
        await link.close()

    assert max(Counter((row.request, row.attempt) for row in rows).values()) == 1
    assert len(rows) == REQUESTS
    assert tuple(sums or ()) == (REQUESTS, REQUESTS, REQUESTS * TOKENS)
    assert status["reconnects"] > 0
    assert status["rows_lost"] == 0


async def _cut(proxy: FaultProxy, chance: random.Random) -> None:
    while True:
        proxy.fault = chance.choice(
            (Fault(), Fault(only=COMMIT, reset_after=0), Fault(reset_after=chance.randrange(99)))
        )
        await asyncio.sleep(0.05 + 0.1 * chance.random())
        proxy.break_all()
