"""Contract of the `Ledger` port: rows are stored once and daily sums agree, in PostgreSQL and in memory."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from headgate.model.units import SECOND, Instant
from headgate.ports.ledger import Ledger, UsageRow
from testing.memory_ledger import MemoryLedger
from tests.ledger.databases import migrated, new_database
from tests.ledger.rows import NOON, a_row, a_spool, a_time, all_days, all_rows, writing

DAY = 86_400 * SECOND


@dataclass
class Subject:
    ledger: Ledger
    rows: Callable[[], Awaitable[list[UsageRow]]]
    """Returns all stored rows after pending writes have finished."""
    days: Callable[[], Awaitable[dict[tuple[Any, ...], tuple[int, ...]]]]
    times: Callable[[], Awaitable[int]]


@pytest_asyncio.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.process)])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    if request.param == "memory":
        yield _in_memory()
        return
    url = await migrated(await new_database(request.getfixturevalue("shared_postgres")))
    link = await asyncpg.connect(url)
    async with a_spool(tmp_path) as spool, writing(url, spool) as writer:

        async def flushed() -> None:
            assert await writer.flush(60.0), writer.problem

        async def rows() -> list[UsageRow]:
            await flushed()
            return await all_rows(link)

        async def days() -> dict[tuple[Any, ...], tuple[int, ...]]:
            await flushed()
            return await all_days(link)

        async def times() -> int:
            await flushed()
            return await link.fetchval("select count(*) from headgate.endpoint_time")

        yield Subject(spool, rows, days, times)
    await link.close()


def _in_memory() -> Subject:
    twin = MemoryLedger()

    async def rows() -> list[UsageRow]:
        return [twin.rows[key] for key in sorted(twin.rows)]

    async def days() -> dict[tuple[Any, ...], tuple[int, ...]]:
        return twin.days()

    async def times() -> int:
        return len(twin.times)

    return Subject(twin, rows, days, times)


async def test_rows_are_stored_unchanged(subject: Subject) -> None:
    rows = [a_row("a"), a_row("b", ttft_us=None, stream=False, metadata=()), a_row("c", 0, model='m"\\\n\t,é')]
    for row in rows:
        subject.ledger.add([row])

    assert await subject.rows() == rows


async def test_adding_a_row_twice_changes_nothing(subject: Subject) -> None:
    subject.ledger.add([a_row("a"), a_row("a", 2)])
    before = await subject.rows(), await subject.days()
    subject.ledger.add([a_row("a"), a_row("a", 2)])
    subject.ledger.add([a_row("a")])

    assert (await subject.rows(), await subject.days()) == before


async def test_correction_is_a_separate_row_but_is_not_counted_as_a_request_or_attempt(subject: Subject) -> None:
    subject.ledger.add([a_row("a", tokens_out=30)])
    subject.ledger.add([a_row("a", correction=1, tokens_out=-10)])

    [(requests, attempts, _, _, tokens_out, *_)] = (await subject.days()).values()
    assert len(await subject.rows()) == 2
    assert (requests, attempts, tokens_out) == (1, 1, 20)


async def test_daily_sums_agree_with_the_rows(subject: Subject) -> None:
    subject.ledger.add([a_row("a", 1, cause="retry", payer="platform"), a_row("a", 2)])
    subject.ledger.add([a_row("b")])
    subject.ledger.add([a_row("c", 0, outcome="rate_limited", cause="", payer="", pool="")])
    subject.ledger.add([a_row("d", at=Instant(NOON + DAY))])
    subject.ledger.add([a_row("e", 0, outcome="model_not_found", pool="", model="made-up")])
    subject.ledger.add([a_row("f", 0, outcome="model_not_found", pool="", model="another")])

    day = NOON // DAY
    days = await subject.days()
    names = "acme/search/ci", "interactive", "m"
    assert days[day, *names, "small", "platform", "retry", "completed"][:2] == (1, 1)
    assert days[day, *names, "small", "tenant", "answer", "completed"] == (
        *(1, 2, 200, 40, 60, 10, 146_000),
        *(20, 400, 60),
    )
    assert days[day, *names, "", "", "", "rate_limited"][:2] == (1, 0)
    assert days[day + 1, *names, "small", "tenant", "answer", "completed"][0] == 1
    assert [key[3] for key in days if key[-1] == "model_not_found"] == [""]
    assert sum(each[0] for each in days.values()) == 6


async def test_days_start_at_midnight_utc(subject: Subject) -> None:
    midnight = Instant(NOON // DAY * DAY + DAY)
    subject.ledger.add([a_row("a", at=Instant(midnight - 1_000))])
    subject.ledger.add([a_row("b", at=midnight)])

    assert sorted(key[0] for key in await subject.days()) == [NOON // DAY, NOON // DAY + 1]


async def test_endpoint_time_is_stored_once(subject: Subject) -> None:
    subject.ledger.add_endpoint_times([a_time("e1"), a_time("e2")])
    subject.ledger.add_endpoint_times([a_time("e1")])

    assert await subject.times() == 2


async def test_thousands_of_rows_are_all_stored(subject: Subject) -> None:
    for number in range(6_000):
        subject.ledger.add([a_row(f"req_{number}", at=Instant(NOON + number * 1_000))])

    assert len(await subject.rows()) == 6_000
    assert [each[0] for each in (await subject.days()).values()] == [6_000]
