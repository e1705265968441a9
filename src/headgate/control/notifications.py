"""Sends one notification to a webhook when a budget reaches 50, 80 or 100 %.

Notifications from the scheduler go into a bounded queue and are sent in the background. With a database, each
notification is recorded there first, and only the process that recorded it sends it. It is therefore sent once, even if
several processes or successive schedulers see the same event. If the webhook fails, the notification is retried with
increasing backoff for an hour. If a recorded notification is still undelivered after that, its process has died or
given up. The first process that finds the notification retries it until its period ends. If the database stays
unreachable, the notification is sent anyway, because a duplicate notification is better than none.

The webhook URL may contain a secret. No log message contains the URL or the receiver's response.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

import aiohttp

from headgate.control.budget_sync import calendar_at
from headgate.control.options import NotificationOptions
from headgate.core.commands import BudgetCrossed, Command
from headgate.core.events import Event
from headgate.model.money import NANO_USD_PER_USD, Period
from headgate.model.units import Instant
from headgate.telemetry.log import log_event

VERSION: Final = 1
QUEUE_MAX: Final = 10_000
POST_S_MAX: Final = 5.0
RETRY_FOR_S: Final = 3_600.0
RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 300.0
ABANDONED_AFTER_S: Final = 3_900.0
"""Age after which an undelivered notification counts as abandoned, in seconds. Longer than any sender's retry period.
"""
RECOVER_EVERY_S: Final = 600.0
CLAIM_TRIES: Final = 6
"""Maximum number of attempts to record a notification. If all of them fail, the notification is sent without a
record.
"""


@dataclass(frozen=True, slots=True)
class NotificationLimits:
    """Queue and delivery limits."""

    queue_max: int = QUEUE_MAX
    post_s_max: float = POST_S_MAX
    retry_for_s: float = RETRY_FOR_S
    """How long delivery is retried, in seconds."""
    retry_s: float = RETRY_S
    """Initial backoff between attempts, in seconds."""
    recover_every_s: float = RECOVER_EVERY_S


DEFAULT_LIMITS: Final = NotificationLimits()


@dataclass(frozen=True, slots=True)
class Notification:
    scope: str
    period: Period
    period_start: date
    percent: int
    limit: int
    spent: int

    def body(self) -> Mapping[str, object]:
        began = datetime.combine(self.period_start, time(), UTC)
        return {
            "version": VERSION,
            "type": "budget",
            "scope": self.scope,
            "period": self.period.value,
            "percent": self.percent,
            "limit_usd": self.limit / NANO_USD_PER_USD,
            "spent_usd": self.spent / NANO_USD_PER_USD,
            "period_start": began.isoformat().replace("+00:00", "Z"),
        }


class Notifier:
    """Observer that queues and sends notifications. Must be created and run inside an event loop."""

    def __init__(
        self,
        options: NotificationOptions,
        session: aiohttp.ClientSession,
        url: str | None,
        limits: NotificationLimits = DEFAULT_LIMITS,
    ) -> None:
        self._options, self._session, self._limits = options, session, limits
        self._table = None if url is None else _NotificationTable(url)
        self._waiting: deque[Notification] = deque()
        self._wake = asyncio.Event()
        self.lost = 0
        """Number of notifications that were dropped because the queue was full or delivery failed for an hour."""

    def change_to(self, options: NotificationOptions) -> None:
        self._options = options

    def __len__(self) -> int:
        return len(self._waiting)

    # Observation

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        for command in commands:
            if isinstance(command, BudgetCrossed):
                self._add(command, now)

    def _add(self, crossed: BudgetCrossed, now: Instant) -> None:
        budget = crossed.budget
        # Use the period in which the spending was counted, even if a new period has begun but has not been reported
        # yet.
        calendar = calendar_at(now if crossed.began is None else crossed.began)
        began = calendar.day if budget.period is Period.DAY else calendar.month
        self._enqueue(Notification(budget.scope, budget.period, began, crossed.percent, budget.limit, budget.spent))

    def _enqueue(self, notice: Notification) -> None:
        if len(self._waiting) >= self._limits.queue_max:
            self._waiting.popleft()
            self.lost += 1
        self._waiting.append(notice)
        self._wake.set()

    # Delivery

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        look_at = loop.time() + self._limits.recover_every_s
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(look_at):
                    await self._wake.wait()
            self._wake.clear()
            if loop.time() >= look_at:
                await self._recover_abandoned()
                look_at = loop.time() + self._limits.recover_every_s
            while self._waiting:
                notice = self._waiting[0]
                await self._deliver(notice)
                # The notification may have been dropped from the full queue while it was being delivered.
                if self._waiting and self._waiting[0] is notice:
                    self._waiting.popleft()

    async def _recover_abandoned(self) -> None:
        """Queues notifications abandoned by other processes."""
        if self._table is not None:
            for notice in await self._table.abandoned():
                self._enqueue(notice)

    async def stop(self) -> None:
        if self._table is not None:
            await self._table.stop()

    async def _deliver(self, notice: Notification) -> None:
        loop = asyncio.get_running_loop()
        until, asked_again = loop.time() + self._limits.retry_for_s, _Backoff(self._limits.retry_s)
        if self._table is not None:
            ours = await self._claim(notice, self._table.claim, asked_again)
            if not ours:
                return
        asked_again = _Backoff(self._limits.retry_s)
        while (problem := await self._post(notice)) is not None:
            pause_s = asked_again.next()
            if loop.time() + pause_s > until:
                self.lost += 1
                log_event(
                    logging.ERROR,
                    "giving up on notification",
                    webhook=self._options.webhook_shown,
                    scope=notice.scope,
                    problem=problem,
                )
                return
            log_event(
                logging.WARNING,
                "notification failed; retrying",
                webhook=self._options.webhook_shown,
                problem=problem,
            )
            await asyncio.sleep(pause_s)
        if self._table is not None:
            await self._table.mark_delivered(notice)

    async def _claim(
        self, notice: Notification, enter: Callable[[Notification], Awaitable[bool | str]], pauses: "_Backoff"
    ) -> bool:
        """Returns whether this process should send the notification."""
        for _ in range(CLAIM_TRIES):
            answer = await enter(notice)
            if isinstance(answer, bool):
                return answer
            log_event(logging.WARNING, "cannot record notification in the ledger; retrying", problem=answer)
            await asyncio.sleep(pauses.next())
        return True

    async def _post(self, notice: Notification) -> str | None:
        """Sends the notification. Returns a description of the problem without the URL, or None."""
        try:
            async with asyncio.timeout(self._limits.post_s_max):
                async with self._session.post(
                    self._options.webhook, json=notice.body(), allow_redirects=False
                ) as answer:
                    return None if 200 <= answer.status < 300 else f"the webhook returned status {answer.status}"
        except TimeoutError:
            return f"no response within {self._limits.post_s_max:g} s"
        except (OSError, aiohttp.ClientError, ValueError) as error:
            return type(error).__name__


class _Backoff:
    """Backoff that doubles up to a maximum."""

    def __init__(self, first_s: float) -> None:
        self._next_s = first_s

    def next(self) -> float:
        pause_s, self._next_s = self._next_s, min(RETRY_S_MAX, 2 * self._next_s)
        return pause_s


_CLAIM: Final = """
    insert into headgate.budget_notifications (scope, period, period_start, percent, limit_nano_usd, spent_nano_usd)
    values ($1, $2, $3, $4, $5, $6)
    on conflict (scope, period, period_start, percent, limit_nano_usd) do update set created_at = now()
    where budget_notifications.delivered_at is null and budget_notifications.created_at < now() - $7::interval
    returning 1
"""
_ABANDONED: Final = """
    select scope, period, (period_start at time zone 'UTC')::date as began, percent, limit_nano_usd, spent_nano_usd
    from headgate.budget_notifications where delivered_at is null and created_at < now() - $1::interval
    and period_start = date_trunc(period, now(), 'UTC') order by created_at limit 100
"""
_DELIVERED: Final = """
    update headgate.budget_notifications set delivered_at = now()
    where scope = $1 and period = $2 and period_start = $3 and percent = $4 and limit_nano_usd = $5
"""


class _NotificationTable:
    """Record of sent notifications in the database, shared by all processes."""

    def __init__(self, url: str) -> None:
        from headgate.ledger.database import DATABASE_ERRORS, Database

        self._database, self._failures = Database(url), DATABASE_ERRORS

    async def claim(self, notice: Notification) -> bool | str:
        """Records a notification. Returns whether it was new or abandoned, or a description of the problem."""
        try:
            async with self._database.acquire() as link:
                return await link.fetchval(_CLAIM, *_key(notice), notice.spent, _abandoned_after()) is not None
        except self._failures as error:
            return self._database.describe(error)

    async def mark_delivered(self, notice: Notification) -> None:
        """Records the delivery, so that no other process treats the notification as abandoned."""
        try:
            async with self._database.acquire() as link:
                await link.execute(_DELIVERED, *_key(notice))
        except self._failures as error:
            problem = self._database.describe(error)
            log_event(logging.WARNING, "cannot record that the notification was delivered", problem=problem)

    async def abandoned(self) -> Sequence[Notification]:
        """Returns the abandoned notifications of current periods, or an empty list if the database is unreachable."""
        try:
            async with self._database.acquire() as link:
                rows = await link.fetch(_ABANDONED, _abandoned_after())
        except self._failures as error:
            problem = self._database.describe(error)
            log_event(logging.WARNING, "cannot query abandoned notifications", problem=problem)
            return ()
        return [
            Notification(
                row["scope"],
                Period(row["period"]),
                row["began"],
                row["percent"],
                row["limit_nano_usd"],
                row["spent_nano_usd"],
            )
            for row in rows
        ]

    async def stop(self) -> None:
        await self._database.stop()


def _abandoned_after() -> timedelta:
    return timedelta(seconds=ABANDONED_AFTER_S)


def _key(notice: Notification) -> tuple[object, ...]:
    began = datetime.combine(notice.period_start, time(), UTC)
    return notice.scope, notice.period.value, began, notice.percent, notice.limit
