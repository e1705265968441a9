"""What of callers' secrets comes into the store of a cell?"""

from pathlib import Path

import pytest

from testing.fake_engine import FakeEngine
from testing.gateway import chat
from tests.lessons.cells import a_cell

pytestmark = pytest.mark.cell

PROMPT, KEY, SALTED = "canary-of-a-prompt", "hg-canary-of-a-key", "canary-of-a-header"


async def test_neither_prompt_nor_key_nor_header_of_a_caller_is_in_it(tmp_path: Path) -> None:
    async with FakeEngine() as engine, a_cell(2, tmp_path, engine.url) as cell:
        headers = {"authorization": f"Bearer {KEY}", "x-canary": SALTED}
        names: list[str] = []
        for gateway in cell.gateways:
            await gateway.until_ready(1)
            async with gateway.post(chat(f"{PROMPT} " * 200, user=PROMPT, stream=True), headers=headers) as answer:
                assert answer.status == 200
                names.append(answer.headers["x-request-id"])
                await answer.read()
        with cell.store.client() as client:
            passed = {key: client.xrange(key) for key in client.keys("*") if client.type(key) == b"stream"}
            written = repr([*passed.values(), *(client.hgetall(key) for key in client.keys("*:snapshot"))])

    # What was said of the requests is there, so there is something to search.
    assert [name for name in names if name not in written] == []
    assert [secret for secret in (PROMPT, KEY, SALTED) if secret in written] == []
