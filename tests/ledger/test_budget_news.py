"""The scheduler receives the calendar and the amounts spent, even while the database is unreachable."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headgate.control.budget_sync import BudgetSync, calendar_at
from headgate.core.events import BudgetSpent, BudgetsSynced
from headgate.model.money import Budget, BudgetStatus, NanoUsd, Period
from headgate.model.policy import Policy, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.units import SECOND, ClassName, Duration, Instant, TenantId
from testing.postgres import Postgres
from tests.ledger.databases import migrated, scratch_database, until
from tests.ledger.test_budget_spending import paid

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


def told_at(moment: datetime, *spent: BudgetSpent) -> BudgetsSynced:
    day = moment.replace(hour=0, minute=0, second=0)
    month = day.replace(day=1)
    next_month = (month + timedelta(days=31)).replace(day=1)
    return BudgetsSynced(instant(day), instant(day + timedelta(days=1)), instant(month), instant(next_month), spent)


@asynccontextmanager
async def running(news: BudgetSync) -> AsyncIterator[None]:
    await news.start()
    task = asyncio.create_task(news.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        await news.stop()


async def test_calendar_is_reported_without_a_database() -> None:
    clock, told = Clock(), []
    news = BudgetSync(None, told.append, lambda: LIMITED, clock.now, every_s=0.01)
    async with running(news):
        assert told == [told_at(NOON)]
        clock.moment = NOON + timedelta(hours=12)
        await until(lambda: told[-1] == told_at(clock.moment))

    assert told[-1].month_began == told[0].month_ends == instant(datetime(2027, 1, 1, tzinfo=UTC))


async def test_nothing_is_reported_until_the_policy_has_a_budget() -> None:
    told: list[BudgetsSynced] = []
    policy = Policy()
    news = BudgetSync(None, told.append, lambda: policy, Clock().now, every_s=60)
    async with running(news):
        await asyncio.sleep(0.01)
        assert told == []
        policy = replace(LIMITED, tenants=(), unit_key="case")
        news.policy_changed()
        await until(lambda: told)


@pytest.mark.process
async def test_spent_amounts_are_reported_at_startup_and_updated(url: str, link: Any) -> None:
    await paid(link, "acme/x", 100, day=NOON.date())
    clock, told = Clock(), []
    news = BudgetSync(url, told.append, lambda: LIMITED, clock.now, every_s=0.02)

    def of(scope: str, day: int, month: int) -> tuple[BudgetSpent, BudgetSpent]:
        return BudgetSpent(scope, Period.DAY, NanoUsd(day)), BudgetSpent(scope, Period.MONTH, NanoUsd(month))

    await news.start()
    assert len(told) == 1
    assert set(told[0].spent) == {*of("tenant:acme", 100, 100), *of("tenant:acme/x", 100, 100)}
    async with running(news):
        await paid(link, "acme", 50, day=NOON.date(), service_class="batch")
        await until(lambda: of("class:batch", 50, 50)[0] in told[-1].spent)
        assert of("tenant:acme", 150, 150)[1] in told[-1].spent

    rest = Duration(12 * 3_600 * SECOND)
    assert news.budgets_left(TenantId("acme/x/key")) == (
        BudgetStatus("tenant:acme", Period.DAY, True, NanoUsd(1_000), NanoUsd(150), NanoUsd(0), rest),
        BudgetStatus("tenant:acme", Period.MONTH, True, NanoUsd(9_000), NanoUsd(150), NanoUsd(0), rest),
        BudgetStatus("tenant:acme/x", Period.DAY, False, NanoUsd(500), NanoUsd(100), NanoUsd(0), rest),
    )
    assert {each.scope for each in news.budgets_left()} >= {"class:batch", "tenant:acme-two"}
    assert news.as_of == NOON


@pytest.mark.process
async def test_new_day_is_reported_while_the_database_is_down(mortal_postgres: Postgres) -> None:
    async with scratch_database(mortal_postgres) as url:
        await migrated(url)
        clock, told = Clock(), []
        news = BudgetSync(url, told.append, lambda: LIMITED, clock.now, every_s=0.05)
        async with running(news):
            await until(lambda: news.as_of is not None)
            await asyncio.to_thread(mortal_postgres.kill)
            clock.moment = NOON + timedelta(hours=13)
            await until(lambda: told[-1] == told_at(clock.moment))
            await asyncio.to_thread(mortal_postgres.restart)
            await until(lambda: news.as_of == clock.moment)


async def test_only_the_calendar_is_reported_if_the_database_is_unreachable() -> None:
    silent: list[BudgetsSynced] = []
    away = BudgetSync(NOWHERE, silent.append, lambda: LIMITED, Clock().now, at_start_s_max=0.5)
    await away.start()
    await away.stop()
    assert silent == [told_at(NOON)]
    assert away.as_of is None


class Interrupted:
    """A ledger that can be read only while it has no problem."""

    last: dict[str, Any] = {}  # noqa: RUF012
    problem: str | None = None

    async def read(self, *_: object) -> str | None:
        return self.problem

    async def stop(self) -> None: ...


async def test_report_states_whether_the_ledger_was_read_since_the_previous_report() -> None:
    told: list[BudgetsSynced] = []
    clock, ledger = Clock(), Interrupted()
    news = BudgetSync(NOWHERE, told.append, lambda: LIMITED, clock.now)
    news._sums = ledger  # type: ignore[assignment]
    for problem in (None, "cannot connect", None):
        ledger.problem = problem
        await news.prepare(LIMITED)
    # Amounts read before midnight do not apply to the new day.
    await news._read()
    clock.moment = NOON + timedelta(hours=13)
    news._report()
    assert [each.ledger_read for each in told] == [True, False, True, False]


class Hanging:
    """A ledger that never responds."""

    last: dict[str, Any] = {}  # noqa: RUF012

    async def read(self, *_: object) -> str | None:
        await asyncio.Event().wait()

    async def stop(self) -> None: ...


async def test_new_day_is_reported_while_the_ledger_read_hangs() -> None:
    told: list[BudgetsSynced] = []
    moment = datetime(2026, 12, 31, 23, 59, 59, 800_000, tzinfo=UTC)

    def now() -> Instant:
        return Instant(round(moment.timestamp() * SECOND))

    news = BudgetSync(NOWHERE, told.append, lambda: LIMITED, now, every_s=0.01)
    news._sums = Hanging()  # type: ignore[assignment]
    task = asyncio.create_task(news.run())
    await until(lambda: told)
    moment += timedelta(seconds=0.3)
    await until(lambda: told[-1].day_began == instant(datetime(2027, 1, 1, tzinfo=UTC)))
    task.cancel()
    await asyncio.wait([task])
    assert told[0].day_began == instant(datetime(2026, 12, 31, tzinfo=UTC)), (
        "the calendar was not reported before the ledger was read"
    )


def test_next_month_starts_on_its_first_day() -> None:
    ends = [calendar_at(instant(datetime(2028, month, 28, tzinfo=UTC))).next_month for month in range(1, 13)]

    assert [(each.month, each.day) for each in ends] == [(month % 12 + 1, 1) for month in range(1, 13)]
