"""Who is told that a budget is half, four fifths or wholly spent, and is told once?

What the scheduler says is put into a bounded queue, and sent to the webhook from there; nobody waits for it. With a
database each notice is entered there first, and only whoever entered it sends it: so one is sent once, however many
processes or schedulers in a row have seen the same. A webhook that does not answer is asked again, at growing
distances, for an hour. What was entered and not delivered for longer than that was entered by a process that died, or
gave up: as long as its period lasts, whoever looks first tries again. If the database is away for long, a notice that
may come twice is better than none.

The address may hold a secret. It is in no message, and neither is what the receiver answers.
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
from headgate.telemetry.log import tell

VERSION: Final = 1
QUEUE_MAX: Final = 10_000
POST_S_MAX: Final = 5.0
FOR_S: Final = 3_600.0
AGAIN_S: Final = 1.0
AGAIN_S_MAX: Final = 300.0
ABANDONED_AFTER_S: Final = 3_900.0
"""Nobody goes on for so long."""
LOOK_EVERY_S: Final = 600.0
UNENTERED_TRIES: Final = 6
"""So often the database is asked; then the notice is sent without."""


@dataclass(frozen=True, slots=True)
class NoticeLimits:
    """Bounds of the queue of notices and of the attempts to send one."""

    queue_max: int = QUEUE_MAX
    post_s_max: float = POST_S_MAX
    for_s: float = FOR_S
    """How long one notice is tried."""
    again_s: float = AGAIN_S
    """The first pause between two attempts."""
    look_every_s: float = LOOK_EVERY_S


DEFAULT_LIMITS: Final = NoticeLimits()


@dataclass(frozen=True, slots=True)
class Notice:
    scope: str
    period: Period
    period_began: date
    percent: int
    limit: int
    spent: int

    def body(self) -> Mapping[str, object]:
        began = datetime.combine(self.period_began, time(), UTC)
        return {
            "version": VERSION,
            "type": "budget",
            "scope": self.scope,
            "period": self.period.value,
            "percent": self.percent,
            "limit_usd": self.limit / NANO_USD_PER_USD,
            "spent_usd": self.spent / NANO_USD_PER_USD,
            "period_began": began.isoformat().replace("+00:00", "Z"),
        }


class Notices:
    """An observer, and what sends for it. Made and run inside an event loop."""

    def __init__(
        self,
        options: NotificationOptions,
        session: aiohttp.ClientSession,
        url: str | None,
        limits: NoticeLimits = DEFAULT_LIMITS,
    ) -> None:
        self._options, self._session, self._limits = options, session, limits
        self._book = None if url is None else _Book(url)
        self._waiting: deque[Notice] = deque()
        self._rings = asyncio.Event()
        self.lost = 0
        """Notices for which there was no room, or that nobody took for an hour."""

    def change_to(self, options: NotificationOptions) -> None:
        self._options = options

    def __len__(self) -> int:
        return len(self._waiting)

    # What is seen

    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        for command in commands:
            if isinstance(command, BudgetCrossed):
                self._add(command, now)

    def _add(self, crossed: BudgetCrossed, now: Instant) -> None:
        budget = crossed.budget
        # That which is counted, though another may have begun that nobody has told of yet.
        calendar = calendar_at(now if crossed.began is None else crossed.began)
        began = calendar.day if budget.period is Period.DAY else calendar.month
        self._put(Notice(budget.scope, budget.period, began, crossed.percent, budget.limit, budget.spent))

    def _put(self, notice: Notice) -> None:
        if len(self._waiting) >= self._limits.queue_max:
            self._waiting.popleft()
            self.lost += 1
        self._waiting.append(notice)
        self._rings.set()

    # What is sent

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        look_at = loop.time() + self._limits.look_every_s
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(look_at):
                    await self._rings.wait()
            self._rings.clear()
            if loop.time() >= look_at:
                await self._look()
                look_at = loop.time() + self._limits.look_every_s
            while self._waiting:
                notice = self._waiting[0]
                await self._deliver(notice)
                # While it was sent the queue may have lost its first for want of room.
                if self._waiting and self._waiting[0] is notice:
                    self._waiting.popleft()

    async def _look(self) -> None:
        """For what others have left behind."""
        if self._book is not None:
            for notice in await self._book.abandoned():
                self._put(notice)

    async def stop(self) -> None:
        if self._book is not None:
            await self._book.stop()

    async def _deliver(self, notice: Notice) -> None:
        loop = asyncio.get_running_loop()
        until, asked_again = loop.time() + self._limits.for_s, _Pauses(self._limits.again_s)
        if self._book is not None:
            ours = await self._entered(notice, self._book.enter, asked_again)
            if not ours:
                return
        asked_again = _Pauses(self._limits.again_s)
        while (problem := await self._post(notice)) is not None:
            pause_s = asked_again.next()
            if loop.time() + pause_s > until:
                self.lost += 1
                tell(
                    logging.ERROR,
                    "a notice was given up",
                    webhook=self._options.webhook_shown,
                    scope=notice.scope,
                    problem=problem,
                )
                return
            tell(
                logging.WARNING,
                "a notice could not be sent; it is tried again",
                webhook=self._options.webhook_shown,
                problem=problem,
            )
            await asyncio.sleep(pause_s)
        if self._book is not None:
            await self._book.delivered(notice)

    async def _entered(
        self, notice: Notice, enter: Callable[[Notice], Awaitable[bool | str]], pauses: "_Pauses"
    ) -> bool:
        """Whether it is ours to send."""
        for _ in range(UNENTERED_TRIES):
            answer = await enter(notice)
            if isinstance(answer, bool):
                return answer
            tell(logging.WARNING, "a notice could not be entered in the ledger; it is tried again", problem=answer)
            await asyncio.sleep(pauses.next())
        return True

    async def _post(self, notice: Notice) -> str | None:
        """What is wrong, if anything is, without the address."""
        try:
            async with asyncio.timeout(self._limits.post_s_max):
                async with self._session.post(
                    self._options.webhook, json=notice.body(), allow_redirects=False
                ) as answer:
                    return None if 200 <= answer.status < 300 else f"it answered with status {answer.status}"
        except TimeoutError:
            return f"no answer within {self._limits.post_s_max:g} s"
        except (OSError, aiohttp.ClientError, ValueError) as error:
            return type(error).__name__


class _Pauses:
    """Each twice as long as the one before, up to a bound."""

    def __init__(self, first_s: float) -> None:
        self._next_s = first_s

    def next(self) -> float:
        pause_s, self._next_s = self._next_s, min(AGAIN_S_MAX, 2 * self._next_s)
        return pause_s


_ENTER: Final = """
    insert into headgate.notices (scope, period, period_began, percent, limit_nano_usd, spent_nano_usd)
    values ($1, $2, $3, $4, $5, $6)
    on conflict (scope, period, period_began, percent, limit_nano_usd) do update set created_at = now()
    where notices.delivered_at is null and notices.created_at < now() - $7::interval returning 1
"""
_ABANDONED: Final = """
    select scope, period, (period_began at time zone 'UTC')::date as began, percent, limit_nano_usd, spent_nano_usd
    from headgate.notices where delivered_at is null and created_at < now() - $1::interval
    and period_began = date_trunc(period, now(), 'UTC') order by created_at limit 100
"""
_DELIVERED: Final = """
    update headgate.notices set delivered_at = now()
    where scope = $1 and period = $2 and period_began = $3 and percent = $4 and limit_nano_usd = $5
"""


class _Book:
    """Where it stands which notices have been sent, for all processes."""

    def __init__(self, url: str) -> None:
        from headgate.ledger.database import FAILURES, Database

        self._database, self._failures = Database(url), FAILURES

    async def enter(self, notice: Notice) -> bool | str:
        """Whether it was not there before, or was left behind; or what is wrong."""
        try:
            async with self._database.borrowed() as link:
                return await link.fetchval(_ENTER, *_key(notice), notice.spent, _abandoned_after()) is not None
        except self._failures as error:
            return self._database.problem(error)

    async def delivered(self, notice: Notice) -> None:
        """Else somebody would take it for abandoned."""
        try:
            async with self._database.borrowed() as link:
                await link.execute(_DELIVERED, *_key(notice))
        except self._failures as error:
            problem = self._database.problem(error)
            tell(logging.WARNING, "that a notice was delivered could not be written down", problem=problem)

    async def abandoned(self) -> Sequence[Notice]:
        """What somebody entered and nobody delivered, of periods that last; nothing where the database is away."""
        try:
            async with self._database.borrowed() as link:
                rows = await link.fetch(_ABANDONED, _abandoned_after())
        except self._failures as error:
            problem = self._database.problem(error)
            tell(logging.WARNING, "notices that were left behind could not be looked for", problem=problem)
            return ()
        return [
            Notice(
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


def _key(notice: Notice) -> tuple[object, ...]:
    began = datetime.combine(notice.period_began, time(), UTC)
    return notice.scope, notice.period.value, began, notice.percent, notice.limit
