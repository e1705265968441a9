"""Can one core begin enough streams?

The bar is 200 new streams a second of 20 tokens each from one core. How late they are depends on what else the machine
does; how much of a core they take does not, so that is what is asserted.
"""

import pytest

from testing.fake_engine import Behaviour, FakeEngine
from tests.loadtest.command import loadtest_process

CPU_SHARE_MAX = 0.6
"""Several times what docs/guides/load-testing.md measures."""


@pytest.mark.process
async def test_two_hundred_streams_a_second_leave_most_of_a_core() -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(tokens=20)
        said = await loadtest_process(
            engine.url, "--rate", "200", "--duration", "2", "--prompt", "250", "--output", "20", "--json"
        )

    total, generator = said.json["total"], said.json["generator"]
    assert total["completed"] == total["offered"] > 300
    assert total["output_tokens"] == 20 * total["offered"]
    assert generator["cpu_share"] < CPU_SHARE_MAX
