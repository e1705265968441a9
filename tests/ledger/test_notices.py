"""Is whoever should know told once that a budget is spent, even by a webhook that fails at first?"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from headgate.control import notifications as module
from headgate.control.budget_sync import calendar_at
from headgate.control.notifications import NoticeLimits, Notices
from headgate.control.options import NotificationOptions
from headgate.core.commands import BudgetCrossed
from headgate.core.events import TimerFired
from headgate.model.money import BudgetLeft, NanoUsd, Period
from headgate.model.units import SECOND, Instant
from tests.ledger.databases import until

NOW_DAY = date(2026, 3, 5)
NOW = Instant(round(datetime(2026, 3, 5, 12, tzinfo=UTC).timestamp()) * SECOND)


def crossed(percent: int = 80, scope: str = "tenant:acme", period: Period = Period.DAY) -> BudgetCrossed:
    left = BudgetLeft(scope, period, True, NanoUsd(10_000_000_000), NanoUsd(8_250_000_000), NanoUsd(0), None)
    return BudgetCrossed(left, percent)


class Receiver:
    """A real one, which answers with these statuses first."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.bodies: list[Any] = []
        self.calls = 0
        self.left = asyncio.Event()
        """Set when those that are not answered may go."""

    async def take(self, request: web.Request) -> web.Response:
        self.calls += 1
        body, status = await request.json(), self.statuses.pop(0) if self.statuses else 204
        if status == 0:
            await self.left.wait()
        if 200 <= status < 300:
            self.bodies.append(body)
        return web.Response(status=status or 504)


@asynccontextmanager
async def listening(receiver: Receiver) -> AsyncIterator[str]:
    """Where it is to be reached."""
    app = web.Application()
    app.router.add_post("/hook/s3cret", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        [(_, port)] = runner.addresses
        yield f"http://127.0.0.1:{port}/hook/s3cret"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def sending(receiver: Receiver, url: str | None, senders: int = 1, **limits: Any) -> AsyncIterator[list[Notices]]:
    async with listening(receiver) as hook, aiohttp.ClientSession() as session:
        quick = NoticeLimits(**({"again_s": 0.01} | limits))
        all_of_them = [Notices(NotificationOptions(hook, "shown"), session, url, quick) for _ in range(senders)]
        running = [asyncio.create_task(each.run()) for each in all_of_them]
        try:
            yield all_of_them
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            for each in all_of_them:
                await each.stop()
            receiver.left.set()


@pytest.mark.process
async def test_a_webhook_that_fails_is_asked_again_and_told_once(
    url: str, link: Any, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Receiver(500, 302, 0)
    async with sending(receiver, url, post_s_max=8.0) as [notices]:
        notices.saw(TimerFired(), [crossed()], NOW)
        await until(lambda: receiver.bodies and not len(notices))

    assert receiver.calls == 4
    assert receiver.bodies == [
        {
            "version": 1,
            "type": "budget",
            "scope": "tenant:acme",
            "period": "day",
            "percent": 80,
            "limit_usd": 10.0,
            "spent_usd": 8.25,
            "period_began": "2026-03-05T00:00:00Z",
        }
    ]
    [row] = await link.fetch("select * from headgate.notices")
    assert (row["scope"], row["percent"], row["spent_nano_usd"]) == ("tenant:acme", 80, 8_250_000_000)
    assert row["delivered_at"] is not None
    assert "s3cret" not in caplog.text


@pytest.mark.process
async def test_of_many_processes_that_see_the_same_one_sends(url: str, link: Any) -> None:
    receiver = Receiver()
    async with sending(receiver, url, senders=4) as processes:
        for each in processes:
            each.saw(TimerFired(), [crossed(), crossed(100), crossed(100, period=Period.MONTH)], NOW)
        await until(lambda: not any(len(each) for each in processes))

    told = sorted((body["percent"], body["period_began"]) for body in receiver.bodies)
    assert told == [(80, "2026-03-05T00:00:00Z"), (100, "2026-03-01T00:00:00Z"), (100, "2026-03-05T00:00:00Z")]
    assert await link.fetchval("select count(*) from headgate.notices where delivered_at is not null") == 3


@pytest.mark.process
async def test_what_a_process_that_died_had_entered_is_sent_by_another(url: str, link: Any) -> None:
    now = Instant(round(datetime.now(UTC).timestamp()) * SECOND)
    dead = module._Book(url)
    entered = module.Notice("tenant:dead", Period.MONTH, calendar_at(now).month, 80, 10, 8)
    assert await dead.enter(entered) is True
    await dead.stop()
    await link.execute(
        "insert into headgate.notices values"
        " ('tenant:told', 'month', date_trunc('month', now(), 'UTC'), 80, 10, 8, now() - interval '2 hours', now()),"
        " ('tenant:past', 'day', '2026-03-05Z', 80, 10, 8, now() - interval '2 hours', null)"
    )
    receiver = Receiver()
    async with sending(receiver, url, senders=3, look_every_s=0.02) as processes:
        for each in processes:
            each.saw(TimerFired(), [crossed(80, "tenant:other")], NOW)
        await until(lambda: receiver.bodies)
        await asyncio.sleep(0.2)
        assert [body["scope"] for body in receiver.bodies] == ["tenant:other"], "whoever entered it may be at it"
        await link.execute(
            "update headgate.notices set created_at = created_at - interval '66 minutes' where scope = 'tenant:dead'"
        )
        await until(lambda: len(receiver.bodies) > 1)
        await asyncio.sleep(0.2)

    [_, late] = receiver.bodies
    assert late == entered.body()
    assert await link.fetchval("select count(*) from headgate.notices where delivered_at is null") == 1


@pytest.mark.process
async def test_who_sees_it_anew_sends_what_was_left_behind(url: str, link: Any) -> None:
    dead = module._Book(url)
    assert await dead.enter(module.Notice("tenant:acme", Period.DAY, NOW_DAY, 80, 10_000_000_000, 8_250_000_000))
    await dead.stop()
    await link.execute("update headgate.notices set created_at = now() - interval '66 minutes'")
    receiver = Receiver()
    async with sending(receiver, url) as [notices]:
        notices.saw(TimerFired(), [crossed()], NOW)
        notices.saw(TimerFired(), [crossed()], NOW)
        await until(lambda: not len(notices))

    assert len(receiver.bodies) == 1


async def test_a_notice_is_of_the_day_that_is_counted_though_another_has_begun() -> None:
    receiver = Receiver()
    after_midnight = Instant(NOW + 13 * 3_600 * SECOND)
    midnight = Instant(NOW - 12 * 3_600 * SECOND)
    async with sending(receiver, None) as [notices]:
        notices.saw(TimerFired(), [replace(crossed(), began=midnight)], after_midnight)
        await until(lambda: receiver.bodies)

    assert receiver.bodies[0]["period_began"] == "2026-03-05T00:00:00Z"


async def test_without_a_database_each_process_sends_what_it_sees() -> None:
    receiver = Receiver()
    async with sending(receiver, None) as [notices]:
        notices.saw(TimerFired(), [crossed()], NOW)
        await until(lambda: receiver.bodies)

    assert len(receiver.bodies) == 1


async def test_when_the_database_stays_away_it_is_sent_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    receiver = Receiver()
    async with sending(receiver, "postgresql://nobody:pass-w0rd@127.0.0.1:1/none") as [notices]:
        notices.saw(TimerFired(), [crossed()], NOW)
        await until(lambda: receiver.bodies and not len(notices))

    assert len(receiver.bodies) == 1
    assert "pass-w0rd" not in caplog.text


async def test_who_answers_nobody_for_an_hour_is_given_up() -> None:
    receiver = Receiver(*[500] * 1_000)
    async with sending(receiver, None, for_s=0.05) as [notices]:
        notices.saw(TimerFired(), [crossed()], NOW)
        await until(lambda: notices.lost == 1)
        await until(lambda: not len(notices))
        receiver.statuses.clear()
        notices.saw(TimerFired(), [crossed(100)], NOW)
        await until(lambda: receiver.bodies)

    assert [body["percent"] for body in receiver.bodies] == [100]


async def test_what_waits_is_bounded_and_what_is_lost_is_counted() -> None:
    receiver = Receiver(*[500] * 20)
    async with sending(receiver, None, queue_max=2) as [notices]:
        for percent in (50, 80, 100):
            notices.saw(TimerFired(), [crossed(percent)], NOW)
        assert (len(notices), notices.lost) == (2, 1)
        receiver.statuses.clear()
        await until(lambda: len(receiver.bodies) == 2)

    assert [body["percent"] for body in receiver.bodies] == [80, 100]
