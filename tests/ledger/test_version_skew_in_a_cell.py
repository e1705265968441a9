"""Gateways of an earlier commit and of this one in one cell, with another protocol version and another schema.

`just skew` does the same under load.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from headgate.hosts.cell.protocol.messages import VERSION
from testing.fake_engine import FakeEngine
from testing.stores import redis
from tests.ledger.databases import migrated
from tests.ledger.test_version_skew import (
    REQUESTS,
    Versions,
    assert_every_request_is_recorded_once,
    rows_are_written,
    source,  # noqa: F401  A fixture.
    use_schema_2,
)

pytestmark = [pytest.mark.cell, pytest.mark.timeout(600)]


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[str]:
    async with FakeEngine() as running:
        yield running.url


async def test_each_version_takes_over_from_the_other_and_no_request_is_lost(
    empty_url: str,
    source: Path,  # noqa: F811  The fixture.
    engine: str,
    tmp_path: Path,
) -> None:
    await use_schema_2(empty_url)
    with ExitStack() as stack:
        store = stack.enter_context(redis())
        cell = {"store": store.url, "member_count": 2}
        versions = Versions(stack, tmp_path, source, engine=engine, url=empty_url, cell=cell)
        earlier = await versions.start("earlier")
        this = await versions.start("this")
        await versions.cell_led_by("earlier")
        assert (await versions.cells())["this"]["protocol"] == {"version": VERSION, "lowest_in_cell": VERSION - 1}
        await versions.send()
        await migrated(empty_url)
        await versions.send()

        await asyncio.to_thread(versions.kill, "earlier", earlier)
        await versions.cell_led_by("this")
        await versions.start("earlier")
        seen = await versions.cell_led_by("this")
        assert {name: each["protocol"] for name, each in seen["members"].items()} == {
            "this": VERSION,
            "earlier": VERSION - 1,
        }
        await versions.send()

        assert await versions.skipped_entries() == 2 * ["headgate_cell_entries_skipped_total 0.0"]
        await asyncio.to_thread(versions.kill, "this", this)
        await versions.cell_led_by("earlier")
        await versions.start("this")
        await versions.cell_led_by("earlier")
        await versions.send()
        await versions.all_ready_with_rows_written()
        await rows_are_written(empty_url, len(versions.sent))

        await assert_every_request_is_recorded_once(empty_url, versions.sent)
    assert len(versions.sent) == 4 * 2 * REQUESTS
    assert len(set(versions.sent)) == len(versions.sent)
