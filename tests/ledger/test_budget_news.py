"""Is a scheduler told which day it is and what was spent, whether or not the database answers?"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headgate.control.budget_sync import BudgetNews, calendar_at
from headgate.core.events import BudgetsTold, Spent
from headgate.model.money import Budget, BudgetLeft, NanoUsd, Period
from headgate.model.policy import Policy, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.units import SECOND, ClassName, Duration, Instant, TenantId
from testing.postgres import Postgres
from tests.ledger.databases import migrated, scratch_database, until
from tests.ledger.test_spent import paid

NOON = datetime(2026, 12, 31, 12, tzinfo=UTC)
NOWHERE = "postgresql://nobody@127.0.0.1:1/none"
LIMITED = Policy(
    tenants=(
        Tenant(TenantId("acme"), budgets=(Budget(Period.DAY, NanoUsd(1_000)), Budget(Period.MONTH, NanoUsd(9_000)))),
        Tenant(TenantId("acme/x"), budgets=(Budget(Period.DAY, NanoUsd(500), hard=False),)),
        Tenant(TenantId("acme-two"), budgets=(Budget(Period.DAY, NanoUsd(1)),)),
    ),
    classes=(ServiceClass(ClassName("batch"), 0, budgets=(Budget(Period.DAY, NanoUsd(5)),)),),
)


def instant(moment: datetime) -> Instant:
    return Instant(round(moment.timestamp()) * SECOND)


class Clock:
    def __init__(self, moment: datetime = NOON) -> None:
        self.moment = moment

    def now(self) -> Instant:
        return instant(self.moment)


def told_at(moment: datetime, *spent: Spent) -> BudgetsTold:
    day = moment.replace(hour=0, minute=0, second=0)
    month = day.replace(day=1)
    next_month = (month + timedelta(days=31)).replace(day=1)
    return BudgetsTold(instant(day), instant(day + timedelta(days=1)), instant(month), instant(next_month), spent)


@asynccontextmanager
async def running(news: BudgetNews) -> AsyncIterator[None]:
    await news.begin()
    task = asyncio.create_task(news.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        await news.stop()


async def test_without_a_database_there_is_the_calendar() -> None:
    clock, told = Clock(), []
    news = BudgetNews(None, told.append, lambda: LIMITED, clock.now, every_s=0.01)
    async with running(news):
        assert told == [told_at(NOON)]
        clock.moment = NOON + timedelta(hours=12)
        await until(lambda: told[-1] == told_at(clock.moment))

    assert told[-1].month_began == told[0].month_ends == instant(datetime(2027, 1, 1, tzinfo=UTC))


async def test_of_a_policy_without_budgets_nothing_is_told_until_there_is_one() -> None:
    told: list[BudgetsTold] = []
    policy = Policy()
    news = BudgetNews(None, told.append, lambda: policy, Clock().now, every_s=60)
    async with running(news):
        await asyncio.sleep(0.01)
        assert told == []
        policy = replace(LIMITED, tenants=(), unit="case")
        news.ring()
        await until(lambda: told)


@pytest.mark.process
async def test_what_the_ledger_has_is_told_before_anybody_comes_in_and_again(url: str, link: Any) -> None:
    await paid(link, "acme/x", 100, day=NOON.date())
    clock, told = Clock(), []
    news = BudgetNews(url, told.append, lambda: LIMITED, clock.now, every_s=0.02)

    def of(scope: str, day: int, month: int) -> tuple[Spent, Spent]:
        return Spent(scope, Period.DAY, NanoUsd(day)), Spent(scope, Period.MONTH, NanoUsd(month))

    await news.begin()
    assert len(told) == 1
    assert set(told[0].spent) == {*of("tenant:acme", 100, 100), *of("tenant:acme/x", 100, 100)}
    async with running(news):
        await paid(link, "acme", 50, day=NOON.date(), service_class="batch")
        await until(lambda: of("class:batch", 50, 50)[0] in told[-1].spent)
        assert of("tenant:acme", 150, 150)[1] in told[-1].spent

    rest = Duration(12 * 3_600 * SECOND)
    assert news.left(TenantId("acme/x/key")) == (
        BudgetLeft("tenant:acme", Period.DAY, True, NanoUsd(1_000), NanoUsd(150), NanoUsd(0), rest),
        BudgetLeft("tenant:acme", Period.MONTH, True, NanoUsd(9_000), NanoUsd(150), NanoUsd(0), rest),
        BudgetLeft("tenant:acme/x", Period.DAY, False, NanoUsd(500), NanoUsd(100), NanoUsd(0), rest),
    )
    assert {each.scope for each in news.left()} >= {"class:batch", "tenant:acme-two"}
    assert news.as_of == NOON


@pytest.mark.process
async def test_a_day_that_begins_while_the_database_is_away_begins_all_the_same(mortal_postgres: Postgres) -> None:
    async with scratch_database(mortal_postgres) as url:
        await migrated(url)
        clock, told = Clock(), []
        news = BudgetNews(url, told.append, lambda: LIMITED, clock.now, every_s=0.05)
        async with running(news):
            await until(lambda: news.as_of is not None)
            await asyncio.to_thread(mortal_postgres.kill)
            clock.moment = NOON + timedelta(hours=13)
            await until(lambda: told[-1] == told_at(clock.moment))
            await asyncio.to_thread(mortal_postgres.restart)
            await until(lambda: news.as_of == clock.moment)


async def test_budgets_begin_with_the_calendar_alone_when_no_database_answers() -> None:
    silent: list[BudgetsTold] = []
    away = BudgetNews(NOWHERE, silent.append, lambda: LIMITED, Clock().now, at_start_s_max=0.5)
    await away.begin()
    await away.stop()
    assert silent == [told_at(NOON)]
    assert away.as_of is None


class Hanging:
    """A ledger that answers nobody."""

    last: dict[str, Any] = {}  # noqa: RUF012

    async def read(self, *_: object) -> str | None:
        await asyncio.Event().wait()

    async def stop(self) -> None: ...


async def test_a_day_begins_while_the_ledger_is_still_being_read() -> None:
    told: list[BudgetsTold] = []
    moment = datetime(2026, 12, 31, 23, 59, 59, 800_000, tzinfo=UTC)

    def now() -> Instant:
        return Instant(round(moment.timestamp() * SECOND))

    news = BudgetNews(NOWHERE, told.append, lambda: LIMITED, now, every_s=0.01)
    news._sums = Hanging()  # type: ignore[assignment]
    task = asyncio.create_task(news.run())
    await until(lambda: told)
    moment += timedelta(seconds=0.3)
    await until(lambda: told[-1].day_began == instant(datetime(2027, 1, 1, tzinfo=UTC)))
    task.cancel()
    await asyncio.wait([task])
    assert told[0].day_began == instant(datetime(2026, 12, 31, tzinfo=UTC)), "it was told before anything was read"


def test_months_end_where_they_end() -> None:
    ends = [calendar_at(instant(datetime(2028, month, 28, tzinfo=UTC))).next_month for month in range(1, 13)]

    assert [(each.month, each.day) for each in ends] == [(month % 12 + 1, 1) for month in range(1, 13)]
