"""Are the secrets of callers kept out of a cell's store?"""

import asyncio
from pathlib import Path

import pytest

from testing.fake_engine import FakeEngine
from testing.gateway import GatewayInLoop, chat
from testing.stores import Server
from tests.lessons.cells import a_cell

pytestmark = [pytest.mark.cell, pytest.mark.timeout(300)]

PROMPT, KEY, HEADER = "canary-of-a-prompt", "hg-canary-of-a-key", "canary-of-a-header"


async def test_neither_prompt_nor_key_nor_header_of_a_caller_is_in_it(tmp_path: Path) -> None:
    async with FakeEngine() as engine, a_cell(2, tmp_path, engine.url) as cell:
        written = ""
        for gateway in cell.gateways:
            await gateway.until_ready(1)
            # A gateway that was cut off for a moment decides by itself and writes nothing: it is asked again.
            async with asyncio.timeout(60):
                while await answered(gateway) not in (stored := contents(cell.store)):
                    await cell.until_all_are("following")
            written += stored

    assert [secret for secret in (PROMPT, KEY, HEADER) if secret in written] == []


async def answered(gateway: GatewayInLoop) -> str:
    """The name of a request that this gateway has answered, with all three secrets in it."""
    headers = {"authorization": f"Bearer {KEY}", "x-canary": HEADER}
    async with gateway.post(chat(f"{PROMPT} " * 200, user=PROMPT, stream=True), headers=headers) as answer:
        assert answer.status == 200
        await answer.read()
        return answer.headers["x-request-id"]


def contents(store: Server) -> str:
    """All events and snapshots in the store."""
    with store.client() as client:
        streams = [client.xrange(key) for key in client.keys("*") if client.type(key) == b"stream"]
        return repr([*streams, *(client.hgetall(key) for key in client.keys("*:snapshot"))])
