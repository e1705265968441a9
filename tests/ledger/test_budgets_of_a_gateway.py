"""Budgets in a complete gateway: restarts, exhausted budgets and the webhook."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.ledger.database import Database
from headgate.ledger.directory.postgres_directory import PostgresDirectory
from headgate.model.money import NanoUsd, Period
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import GatewayInLoop, a_config, chat, gateway_in_loop
from tests.ledger.databases import ADMIN, ANY, SECRET, with_key
from tests.ledger.test_notices import Receiver, listening

TOKENS = 10
DAY_USD = 0.03
"""Daily budget in dollars: three ten-token responses at one dollar per thousand tokens."""


@asynccontextmanager
async def spending(folder: Path, **settings: Any) -> AsyncIterator[GatewayInLoop]:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(tokens=TOKENS)
        config = a_config(engine.url, key_secret=SECRET.decode(), **settings)
        config["pools"]["small"]["prices"] = [{"input_per_1m_tokens": 0, "output_per_1m_tokens": 1_000}]
        config["tenants"] = {"laptop": {"budgets": {"day": DAY_USD, "month": {"usd": 100, "kind": "soft"}}}}
        async with gateway_in_loop(config, folder) as gateway:
            yield gateway


async def asked(gateway: GatewayInLoop) -> int:
    async with gateway.post(chat(max_tokens=TOKENS, stream=True)) as answer:
        await answer.read()
        return answer.status


async def status_for(gateway: GatewayInLoop, key: str) -> int:
    headers = {"authorization": f"Bearer {key}"}
    async with gateway.post(chat(max_tokens=TOKENS), headers=headers) as answer:
        await answer.read()
        return answer.status


async def budgets(gateway: GatewayInLoop) -> list[dict[str, Any]]:
    async with gateway.http.get(gateway.url + "/v1/usage") as answer:
        return (await answer.json())["budgets"]


async def spent_in(link: Any) -> float:
    whole = "select sum(input_nano_usd + output_nano_usd + overhead_nano_usd) / 1e9 from headgate.usage_daily"
    return float(await link.fetchval(whole) or 0)


@pytest.mark.process
async def test_spent_amounts_survive_a_restart(url: str, link: Any, tmp_path: Path) -> None:
    settings = {"database": {"url": url}, "ledger": {"spool_directory": str(tmp_path / "spool")}}
    async with spending(tmp_path, **settings) as gateway:
        statuses = [await asked(gateway) for _ in range(4)]
        rows = await budgets(gateway)
        async with asyncio.timeout(60):
            while await spent_in(link) < 0.0299:
                await asyncio.sleep(0.05)
    async with spending(tmp_path, **settings) as gateway:
        again = await asked(gateway)
        after = await budgets(gateway)

    assert statuses == [200, 200, 200, 429]
    assert again == 429
    assert [(each["scope"], each["period"], each["kind"]) for each in rows] == [
        ("tenant:laptop", "day", "hard"),
        ("tenant:laptop", "month", "soft"),
    ]
    assert [each["spent_usd"] for each in rows] == [each["spent_usd"] for each in after] == [0.03, 0.03]
    assert rows[0]["remaining_usd"] == 0
    assert rows[0]["resets_at"].endswith("T00:00:00Z")
    assert "as_of" not in rows[0]


async def spent_before(link: Any, tenant: str, usd: float) -> None:
    """Insert an amount as if other gateways had written it today."""
    await link.execute(
        "insert into headgate.usage_daily (day, tenant, class, model, pool, payer, cause, outcome, requests, attempts,"
        " tokens_in, tokens_cached, tokens_out, tokens_reasoning, engine_us,"
        " input_nano_usd, output_nano_usd, overhead_nano_usd) values"
        " ((now() at time zone 'utc')::date, $1, 'standard', 'small', 'small', 'tenant', 'answer', 'completed',"
        " 1, 1, 1, 0, 1, 0, 1, 0, $2, 0)",
        tenant,
        round(usd * 1e9),
    )


@pytest.mark.process
async def test_exhausted_budget_in_the_database_never_admits_a_request(url: str, link: Any, tmp_path: Path) -> None:
    directory = PostgresDirectory(database := Database(url))
    await with_key(directory, "acme/search/ci", "hg-early")
    await directory.set_budget("acme", Period.DAY, NanoUsd(30_000_000), ADMIN, hard=True)
    await spent_before(link, "acme/search/ci", 0.03)
    async with FakeEngine() as engine:
        config = a_config(engine.url, key_secret=SECRET.decode(), database={"url": url})
        del config["anonymous_tenant"]
        config["pools"]["small"]["prices"] = [{"input_per_1m_tokens": 0, "output_per_1m_tokens": 1_000}]
        async with gateway_in_loop(config, tmp_path) as gateway:
            # There is no need to wait, because the amounts spent are known before the first request is accepted.
            assert await status_for(gateway, "hg-early") == 429

            await directory.create_tenant("late", ANY, ADMIN)
            await directory.set_budget("late", Period.DAY, NanoUsd(30_000_000), ADMIN, hard=True)
            await spent_before(link, "late/search/ci", 0.03)
            await with_key(directory, "late/search/ci", "hg-late")
            statuses: set[int] = set()
            async with asyncio.timeout(60):
                while 429 not in statuses:
                    statuses.add(await status_for(gateway, "hg-late"))
    await database.stop()

    assert 200 not in statuses


async def test_webhook_is_notified_of_budget_thresholds(tmp_path: Path) -> None:
    receiver = Receiver(503)
    async with listening(receiver) as hook, spending(tmp_path, notifications={"webhook": hook}) as gateway:
        for _ in range(3):
            assert await asked(gateway) == 200
        async with asyncio.timeout(60):
            while len(receiver.bodies) < 3:
                await asyncio.sleep(0.02)

    told = [(body["scope"], body["percent"], body["limit_usd"]) for body in receiver.bodies]
    assert told == [("tenant:laptop", percent, DAY_USD) for percent in (50, 80, 100)]
