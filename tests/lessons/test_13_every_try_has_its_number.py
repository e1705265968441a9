"""The ledger shows how many times the gateway or the caller attempted a request.

Retries by an SDK cannot be distinguished from new requests. Retries by the gateway are numbered attempts in the ledger,
and a retry by the caller is a separate request.
"""

from pathlib import Path

import pytest

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import chat
from tests.lessons.ledgers import a_gateway, written

pytestmark = pytest.mark.process


async def test_request_with_three_attempts_has_three_numbered_rows(url: str, tmp_path: Path) -> None:
    async with FakeEngine() as engine, FakeEngine() as other:
        async with a_gateway(url, tmp_path, engine.url, other.url) as gateway:
            for each in (engine, other):
                each.behaviour = Behaviour(tokens=4)
                # Each engine fails once.
                each.script.append(Behaviour(status=500))
            async with gateway.post(chat()) as answer:
                assert answer.status == 200
                name = answer.headers["x-request-id"]
            rows = [row for row in await written(gateway, 3) if row.request == name]
            asked = len(engine.requests) + len(other.requests)

    tries = [(row.attempt, row.ending, row.tokens_out) for row in rows]
    assert tries == [(1, "failed", 0), (2, "failed", 0), (3, "completed", 4)]
    assert {row.outcome for row in rows} == {"completed"}
    assert rows[0].endpoint != rows[1].endpoint
    # Every attempt has a row.
    assert asked == len(rows)


async def test_client_retry_is_a_separate_request(url: str, tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with a_gateway(url, tmp_path, engine.url) as gateway:
            for retries in ("0", "1"):
                async with gateway.post(chat(), headers={"x-stainless-retry-count": retries}) as answer:
                    await answer.read()
            rows = await written(gateway, 2)

    assert [row.attempt for row in rows] == [1, 1]
    assert len({row.request for row in rows}) == 2
