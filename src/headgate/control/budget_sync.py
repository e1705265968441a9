"""Which day and month is it for whoever counts what is spent, and what does the ledger have of them?

The scheduler has no calendar. It is told the periods, which are those of UTC, when the process starts, when one of them
ends, and every ten seconds with what the ledger has. Without a database there is only the calendar: then what was spent
before a restart is not known.

A process of a cell that is not the scheduler keeps what it was told for when it is, and tells its callers from it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Final

from headgate.core.events import BudgetsTold, Spent
from headgate.model.money import Budget, BudgetLeft, NanoUsd, Period
from headgate.model.policy import Policy
from headgate.model.units import SECOND, Duration, Instant, TenantId
from headgate.telemetry.log import tell

if TYPE_CHECKING:
    from headgate.ledger.spent import Sums

EVERY_S: Final = 10.0
AT_START_S_MAX: Final = 3.0

_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Calendar:
    """The day and the month of a moment."""

    day: date

    @property
    def month(self) -> date:
        return self.day.replace(day=1)

    @property
    def next_month(self) -> date:
        # No month has more than 31 days, so this is always in the next one.
        return (self.month + timedelta(days=31)).replace(day=1)

    def told(self, spent: tuple[Spent, ...] = ()) -> BudgetsTold:
        day, ends = self.day, _instant(self.next_month)
        return BudgetsTold(_instant(day), _instant(day + _DAY), _instant(self.month), ends, spent)


def calendar_at(now: Instant) -> Calendar:
    return Calendar(datetime.fromtimestamp(now // SECOND, UTC).date())


def _instant(day: date) -> Instant:
    return Instant(round(datetime.combine(day, time(), UTC).timestamp()) * SECOND)


class BudgetNews:
    """Tells one process's host. Made and run inside an event loop."""

    def __init__(
        self,
        url: str | None,
        tell_host: Callable[[BudgetsTold], None],
        policy: Callable[[], Policy],
        now: Callable[[], Instant],
        *,
        every_s: float = EVERY_S,
        at_start_s_max: float = AT_START_S_MAX,
    ) -> None:
        """`url` is the database's; `policy` gives the one in force."""
        self._sums = None if url is None else _Reader(url)
        self._tell_host, self._policy, self._now, self._every_s = tell_host, policy, now, every_s
        self._at_start_s_max = at_start_s_max
        self._known: dict[str, tuple[NanoUsd, NanoUsd]] = {}
        self._said: dict[str, tuple[Spent, Spent]] = {}
        """The same as it was said last."""
        self._day: date | None = None
        self._as_of: Instant | None = None
        """When the ledger was last read."""
        self._coming: Policy | None = None
        """One that may not be in force yet, and of whose budgets the ledger is asked as well."""
        self._asked: frozenset[str] = frozenset()
        """The scopes of which it was."""
        self._away = False
        self._rings = asyncio.Event()
        self._reading = asyncio.Lock()

    async def begin(self) -> None:
        """Before anybody is let in: with what the ledger has, if it says so soon."""
        if not self._matters():
            return
        if self._sums is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._at_start_s_max):
                    await self._read()
        self._say()

    async def run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(self._every_s, self._until_midnight_s())):
                    await self._rings.wait()
            self._rings.clear()
            if not self._matters():
                continue
            if self._sums is None or calendar_at(self._now()).day != self._day:
                # The day has begun whatever the database says, and however late.
                self._say()
            if self._sums is not None:
                # The day ends however long the database takes.
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._until_midnight_s()):
                        await self._read()
                self._say()

    def ring(self) -> None:
        """There are other budgets: what is spent of them is told at once."""
        self._rings.set()

    async def stop(self) -> None:
        if self._sums is not None:
            await self._sums.stop()

    def lacks(self, policy: Policy) -> bool:
        """Whether it has budgets of which the ledger was not asked yet."""
        return self._sums is not None and any(scope not in self._asked for scope, _ in _budgeted(policy))

    async def prepare(self, policy: Policy) -> bool:
        """Tells what is spent by the budgets of a policy that is to come; whether the ledger said so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._at_start_s_max):
                self._coming = policy
                await self._read()
        self._say()
        return not self.lacks(policy)

    def _matters(self) -> bool:
        policy = self._policy()
        units = policy.unit is not None and any(each.unit_cost_max is not None for each in policy.classes)
        return units or any(True for _ in _budgeted(policy))

    def _say(self) -> None:
        calendar = calendar_at(self._now())
        if calendar.day != self._day:
            # What was read is of another day.
            self._known, self._day = {}, calendar.day
        self._said = {scope: _spent(scope, *amounts, self._said.get(scope)) for scope, amounts in self._known.items()}
        self._tell_host(calendar.told(tuple(chain.from_iterable(self._said.values()))))

    async def _read(self) -> None:
        assert self._sums is not None
        calendar, policies = calendar_at(self._now()), (self._policy(), self._coming or Policy())
        scopes = dict.fromkeys(scope for policy in policies for scope, _ in _budgeted(policy))
        async with self._reading:
            problem = await self._sums.read(calendar, scopes)
        if problem is None:
            self._asked = frozenset(scopes)
            self._known, self._day, self._as_of = self._sums.last, calendar.day, self._now()
        if (problem is not None) is not self._away:
            self._away = problem is not None
            if problem is None:
                tell(logging.INFO, "what is spent of budgets is read from the ledger")
            else:
                message = "what is spent of budgets cannot be read; what is counted here goes on"
                tell(logging.WARNING, message, problem=problem)

    def _until_midnight_s(self) -> float:
        now = self._now()
        return max(0.0, (_instant(calendar_at(now).day + _DAY) - now) / SECOND) + 0.001

    # For those who look

    @property
    def as_of(self) -> datetime | None:
        """When the ledger was last read."""
        if self._as_of is None:
            return None
        return datetime.fromtimestamp(self._as_of // SECOND, UTC)

    def left(self, tenant: TenantId | None = None) -> tuple[BudgetLeft, ...]:
        """Where budgets stand by the ledger alone, for a process that does not count them itself."""
        now, calendar = self._now(), calendar_at(self._now())
        ends = {Period.DAY: _instant(calendar.day + _DAY), Period.MONTH: _instant(calendar.next_month)}
        rows: list[BudgetLeft] = []
        for scope, budgets in _budgeted(self._policy()):
            if tenant is not None and not f"tenant:{tenant}/".startswith(f"{scope}/"):
                continue
            of_day, of_month = self._known.get(scope, (NanoUsd(0), NanoUsd(0)))
            for each in budgets:
                known = of_day if each.period is Period.DAY else of_month
                reset_ns = Duration(ends[each.period] - now)
                rows.append(BudgetLeft(scope, each.period, each.hard, each.limit, known, NanoUsd(0), reset_ns))
        return tuple(rows)


def _spent(scope: str, of_day: NanoUsd, of_month: NanoUsd, said: tuple[Spent, Spent] | None) -> tuple[Spent, Spent]:
    """What is said of a scope: what was said, if it is the same, so that it is seen at once that it is."""
    if said is not None and said[0].spent == of_day and said[1].spent == of_month:
        return said
    return Spent(scope, Period.DAY, of_day), Spent(scope, Period.MONTH, of_month)


class _Reader:
    """Asks the ledger, by a connection of its own."""

    def __init__(self, url: str) -> None:
        from headgate.ledger.database import FAILURES, Database
        from headgate.ledger.spent import spent

        self._database, self._failures, self._spent = Database(url), FAILURES, spent
        self.last: Sums = {}

    async def read(self, calendar: Calendar, scopes: Iterable[str]) -> str | None:
        """What is wrong, if anything is."""
        named = [scope.partition(":") for scope in scopes]
        tenants = [name for kind, _, name in named if kind == "tenant"]
        classes = [name for kind, _, name in named if kind == "class"]
        try:
            async with self._database.borrowed() as link:
                day, month = calendar.day, calendar.month
                self.last = await self._spent(link, day=day, month=month, tenants=tenants, classes=classes)
        except self._failures as error:
            return self._database.problem(error)
        return None

    async def stop(self) -> None:
        await self._database.stop()


def _budgeted(policy: Policy) -> Iterable[tuple[str, tuple[Budget, ...]]]:
    """Every scope that has budgets, with them."""
    yield from ((f"tenant:{each.id}", each.budgets) for each in policy.tenants if each.budgets)
    yield from ((f"class:{each.name}", each.budgets) for each in policy.classes if each.budgets)
