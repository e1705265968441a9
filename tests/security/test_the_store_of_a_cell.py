"""A cell's store contains none of the callers' secrets."""

import asyncio
from pathlib import Path

import pytest

from testing.fake_engine import FakeEngine
from testing.gateway import GatewayInLoop, chat
from testing.stores import Server
from tests.lessons.cells import a_cell

pytestmark = [pytest.mark.cell, pytest.mark.timeout(300)]

PROMPT, KEY, HEADER = "canary-of-a-prompt", "hg-canary-of-a-key", "canary-of-a-header"


async def test_store_contains_no_prompt_key_or_header(tmp_path: Path) -> None:
    async with FakeEngine() as engine, a_cell(2, tmp_path, engine.url) as cell:
        written = ""
        for gateway in cell.gateways:
            await gateway.wait_until_ready(1)
            # A gateway that was briefly disconnected is an island and writes nothing, so the request is repeated.
            async with asyncio.timeout(60):
                while await answered(gateway) not in (stored := contents(cell.store)):
                    await cell.until_all_are("following")
            written += stored

    assert [secret for secret in (PROMPT, KEY, HEADER) if secret in written] == []


async def answered(gateway: GatewayInLoop) -> str:
    """Send a request that contains all three secrets and return its ID."""
    headers = {"authorization": f"Bearer {KEY}", "x-canary": HEADER}
    async with gateway.post(chat(f"{PROMPT} " * 200, user=PROMPT, stream=True), headers=headers) as answer:
        assert answer.status == 200
        await answer.read()
        return answer.headers["x-request-id"]


def contents(store: Server) -> str:
    """Return all events and snapshots in the store."""
    with store.client() as client:
        streams = [client.xrange(key) for key in client.keys("*") if client.type(key) == b"stream"]
        return repr([*streams, *(client.hgetall(key) for key in client.keys("*:snapshot"))])
