"""The ledger row for a streaming request equals the row for the same request without streaming.

Some gateways record streams with a cost of zero. These tests send the same requests in both forms to the same engine;
the rows may differ only in their times. Usage that the engine did not report is marked as estimated.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.ports.ledger import UsageRow
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import GatewayInLoop, chat
from tests.lessons.ledgers import a_gateway, written
from tests.simulation.servers import an_engine

pytestmark = pytest.mark.process

TIMES = ("at", "request", "queue_us", "ttft_us", "duration_us", "input_us", "output_us", "overhead_us")
MONEY = ("input_nano_usd", "output_nano_usd", "overhead_nano_usd")
"""With hourly prices, cost depends on time and differs as well."""


def but_for_times(row: UsageRow) -> UsageRow:
    return row._replace(stream=False, **dict.fromkeys((*TIMES, *MONEY), 0))


async def ask(gateway: GatewayInLoop, body: dict[str, Any], path: str) -> None:
    async with gateway.post(body, path) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()


BODIES: dict[str, Callable[[int], dict[str, Any]]] = {
    "/v1/chat/completions": lambda n: chat(f"question {n} " * 20, max_tokens=5 + n, metadata={"feature": "search"}),
    "/v1/completions": lambda n: {"model": "m", "prompt": f"question {n} " * 20, "max_tokens": 5 + n},
}


async def test_streaming_and_non_streaming_requests_produce_the_same_row(url: str, tmp_path: Path) -> None:
    async with an_engine() as engine:
        async with a_gateway(url, tmp_path, engine.url, served_model="m") as gateway:
            for stream in (False, True):
                for path, body in BODIES.items():
                    for number in range(4):
                        await ask(gateway, body(number) | {"stream": stream}, path)
            rows = await written(gateway, 16)
        produced = await engine.metric("vllm:generation_tokens_total")

    whole = [but_for_times(row) for row in rows if not row.stream]
    streamed = [but_for_times(row) for row in rows if row.stream]
    # Prefix cache hits depend on earlier requests.
    assert [row._replace(tokens_cached=0) for row in whole] == [row._replace(tokens_cached=0) for row in streamed]
    assert len(whole) == 8
    assert {row.usage_source for row in rows} == {"engine"}
    assert sum(row.tokens_out for row in rows) == produced
    assert all(row.tokens_in > 0 for row in rows)
    assert [row.ttft_us is not None for row in rows] == [row.stream for row in rows]
    assert {row.metadata for row in rows if row.api == "chat"} == {(("feature", "search"),)}


@pytest.mark.parametrize("include_usage", [True, False])
async def test_row_does_not_depend_on_include_usage(url: str, tmp_path: Path, include_usage: bool) -> None:
    async with an_engine() as engine:
        async with a_gateway(url, tmp_path, engine.url, served_model="m") as gateway:
            options = {"stream": True, "stream_options": {"include_usage": include_usage}}
            await ask(gateway, chat(max_tokens=7, **options), "/v1/chat/completions")
            [row] = await written(gateway, 1)

    assert (row.tokens_out, row.usage_source) == (7, "engine")


async def test_missing_usage_is_estimated_and_marked(url: str, tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(tokens=6, usage=False)
        async with a_gateway(url, tmp_path, engine.url) as gateway:
            async with gateway.post(chat("x" * 400, stream=True)) as answer:
                await answer.read()
            [row] = await written(gateway, 1)

    assert row.usage_source == "estimated"
    assert 100 <= row.tokens_in <= 120
    assert row.tokens_out == 6
    assert row.outcome == "completed"
