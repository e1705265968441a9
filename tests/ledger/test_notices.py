"""Budget notifications are delivered once, even if the webhook fails at first."""

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
from headgate.control.notifications import NotificationLimits, Notifier
from headgate.control.options import NotificationOptions
from headgate.core.commands import BudgetCrossed
from headgate.core.events import TimerFired
from headgate.model.money import BudgetStatus, NanoUsd, Period
from headgate.model.units import SECOND, Instant
from tests.ledger.databases import until

NOW_DAY = date(2026, 3, 5)
NOW = Instant(round(datetime(2026, 3, 5, 12, tzinfo=UTC).timestamp()) * SECOND)


def crossed(percent: int = 80, scope: str = "tenant:acme", period: Period = Period.DAY) -> BudgetCrossed:
    left = BudgetStatus(scope, period, True, NanoUsd(10_000_000_000), NanoUsd(8_250_000_000), NanoUsd(0), None)
    return BudgetCrossed(left, percent)


class Receiver:
    """A webhook server that responds with these statuses first. For status 0, it does not respond."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.bodies: list[Any] = []
        self.calls = 0
        self.left = asyncio.Event()
        """Set to release requests that have not been answered."""

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
    """Run the receiver and yield its URL."""
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
async def sending(
    receiver: Receiver, url: str | None, senders: int = 1, **limits: Any
) -> AsyncIterator[list[Notifier]]:
    async with listening(receiver) as hook, aiohttp.ClientSession() as session:
        quick = NotificationLimits(**({"retry_s": 0.01} | limits))
        all_of_them = [Notifier(NotificationOptions(hook, "shown"), session, url, quick) for _ in range(senders)]
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
async def test_failed_delivery_is_retried_and_delivered_once(
    url: str, link: Any, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Receiver(500, 302, 0)
    async with sending(receiver, url, post_s_max=8.0) as [notices]:
        notices.observe(TimerFired(), [crossed()], NOW)
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
            "period_start": "2026-03-05T00:00:00Z",
        }
    ]
    [row] = await link.fetch("select * from headgate.budget_notifications")
    assert (row["scope"], row["percent"], row["spent_nano_usd"]) == ("tenant:acme", 80, 8_250_000_000)
    assert row["delivered_at"] is not None
    assert "s3cret" not in caplog.text


@pytest.mark.process
async def test_only_one_of_several_processes_sends_a_notification(url: str, link: Any) -> None:
    receiver = Receiver()
    async with sending(receiver, url, senders=4) as processes:
        for each in processes:
            each.observe(TimerFired(), [crossed(), crossed(100), crossed(100, period=Period.MONTH)], NOW)
        await until(lambda: not any(len(each) for each in processes))

    told = sorted((body["percent"], body["period_start"]) for body in receiver.bodies)
    assert told == [(80, "2026-03-05T00:00:00Z"), (100, "2026-03-01T00:00:00Z"), (100, "2026-03-05T00:00:00Z")]
    assert await link.fetchval("select count(*) from headgate.budget_notifications where delivered_at is not null") == 3


@pytest.mark.process
async def test_notification_from_a_dead_process_is_sent_by_another(url: str, link: Any) -> None:
    now = Instant(round(datetime.now(UTC).timestamp()) * SECOND)
    dead = module._NotificationTable(url)
    entered = module.Notification("tenant:dead", Period.MONTH, calendar_at(now).month, 80, 10, 8)
    assert await dead.claim(entered) is True
    await dead.stop()
    await link.execute(
        "insert into headgate.budget_notifications values"
        " ('tenant:told', 'month', date_trunc('month', now(), 'UTC'), 80, 10, 8, now() - interval '2 hours', now()),"
        " ('tenant:past', 'day', '2026-03-05Z', 80, 10, 8, now() - interval '2 hours', null)"
    )
    receiver = Receiver()
    async with sending(receiver, url, senders=3, recover_every_s=0.02) as processes:
        for each in processes:
            each.observe(TimerFired(), [crossed(80, "tenant:other")], NOW)
        await until(lambda: receiver.bodies)
        await asyncio.sleep(0.2)
        assert [body["scope"] for body in receiver.bodies] == ["tenant:other"], (
            "sent too early; the process that recorded it may still send it"
        )
        await link.execute(
            "update headgate.budget_notifications set created_at = created_at - interval '66 minutes'"
            " where scope = 'tenant:dead'"
        )
        await until(lambda: len(receiver.bodies) > 1)
        await asyncio.sleep(0.2)

    [_, late] = receiver.bodies
    assert late == entered.body()
    assert await link.fetchval("select count(*) from headgate.budget_notifications where delivered_at is null") == 1


@pytest.mark.process
async def test_abandoned_notification_is_sent_when_the_threshold_is_crossed_again(url: str, link: Any) -> None:
    dead = module._NotificationTable(url)
    assert await dead.claim(module.Notification("tenant:acme", Period.DAY, NOW_DAY, 80, 10_000_000_000, 8_250_000_000))
    await dead.stop()
    await link.execute("update headgate.budget_notifications set created_at = now() - interval '66 minutes'")
    receiver = Receiver()
    async with sending(receiver, url) as [notices]:
        notices.observe(TimerFired(), [crossed()], NOW)
        notices.observe(TimerFired(), [crossed()], NOW)
        await until(lambda: not len(notices))

    assert len(receiver.bodies) == 1


async def test_notification_after_midnight_names_the_budget_period() -> None:
    receiver = Receiver()
    after_midnight = Instant(NOW + 13 * 3_600 * SECOND)
    midnight = Instant(NOW - 12 * 3_600 * SECOND)
    async with sending(receiver, None) as [notices]:
        notices.observe(TimerFired(), [replace(crossed(), began=midnight)], after_midnight)
        await until(lambda: receiver.bodies)

    assert receiver.bodies[0]["period_start"] == "2026-03-05T00:00:00Z"


async def test_process_without_a_database_sends_its_own_notifications() -> None:
    receiver = Receiver()
    async with sending(receiver, None) as [notices]:
        notices.observe(TimerFired(), [crossed()], NOW)
        await until(lambda: receiver.bodies)

    assert len(receiver.bodies) == 1


async def test_notification_is_sent_while_the_database_is_down(caplog: pytest.LogCaptureFixture) -> None:
    receiver = Receiver()
    async with sending(receiver, "postgresql://nobody:pass-w0rd@127.0.0.1:1/none") as [notices]:
        notices.observe(TimerFired(), [crossed()], NOW)
        await until(lambda: receiver.bodies and not len(notices))

    assert len(receiver.bodies) == 1
    assert "pass-w0rd" not in caplog.text


async def test_undeliverable_notification_is_dropped_after_the_timeout() -> None:
    receiver = Receiver(*[500] * 1_000)
    async with sending(receiver, None, retry_for_s=0.05) as [notices]:
        notices.observe(TimerFired(), [crossed()], NOW)
        await until(lambda: notices.lost == 1)
        await until(lambda: not len(notices))
        receiver.statuses.clear()
        notices.observe(TimerFired(), [crossed(100)], NOW)
        await until(lambda: receiver.bodies)

    assert [body["percent"] for body in receiver.bodies] == [100]


async def test_queue_is_bounded_and_lost_notifications_are_counted() -> None:
    receiver = Receiver(*[500] * 20)
    async with sending(receiver, None, queue_max=2) as [notices]:
        for percent in (50, 80, 100):
            notices.observe(TimerFired(), [crossed(percent)], NOW)
        assert (len(notices), notices.lost) == (2, 1)
        receiver.statuses.clear()
        await until(lambda: len(receiver.bodies) == 2)

    assert [body["percent"] for body in receiver.bodies] == [80, 100]
