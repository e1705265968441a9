"""Reports calendar periods and ledger amounts to the scheduler's budgets.

The scheduler has no calendar. It receives the current day and month (UTC) when the process starts, at the end of each
day, and every ten seconds together with the amounts in the ledger. Without a database, it receives only the calendar,
so spending before a restart is unknown.

In a cell, a process that is not the scheduler keeps these values in case it becomes the scheduler. It also uses them in
its responses to clients.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Final

from headgate.core.events import BudgetSpent, BudgetsSynced
from headgate.model.money import Budget, BudgetStatus, NanoUsd, Period
from headgate.model.persistent_map import PersistentMap
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant, levels_of, tenant_table
from headgate.model.units import SECOND, Duration, Instant, TenantId
from headgate.telemetry.log import log_event

if TYPE_CHECKING:
    from headgate.ledger.budget_spending import SpendingByScope

READ_EVERY_S: Final = 10.0
START_READ_S_MAX: Final = 3.0

_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Calendar:
    """The day and month that contain a point in time."""

    day: date

    @property
    def month(self) -> date:
        return self.day.replace(day=1)

    @property
    def next_month(self) -> date:
        # No month has more than 31 days, so this is always in the next month.
        return (self.month + timedelta(days=31)).replace(day=1)

    def event(self, spent: tuple[BudgetSpent, ...] = (), *, ledger_read: bool = False) -> BudgetsSynced:
        day, ends = self.day, _instant(self.next_month)
        return BudgetsSynced(_instant(day), _instant(day + _DAY), _instant(self.month), ends, spent, ledger_read)


def calendar_at(now: Instant) -> Calendar:
    return Calendar(datetime.fromtimestamp(now // SECOND, UTC).date())


def _instant(day: date) -> Instant:
    return Instant(round(datetime.combine(day, time(), UTC).timestamp()) * SECOND)


class BudgetSync:
    """Reports budgets to a process's host. Must be created and run inside an event loop."""

    def __init__(
        self,
        url: str | None,
        report: Callable[[BudgetsSynced], None],
        policy: Callable[[], Policy],
        now: Callable[[], Instant],
        *,
        every_s: float = READ_EVERY_S,
        at_start_s_max: float = START_READ_S_MAX,
    ) -> None:
        """`url` is the database URL. `policy` returns the policy in force."""
        self._sums = None if url is None else _SpendReader(url)
        self._tell_host, self._policy, self._now, self._every_s = report, policy, now, every_s
        self._at_start_s_max = at_start_s_max
        self._known: dict[str, tuple[NanoUsd, NanoUsd]] = {}
        self._reported: dict[str, tuple[BudgetSpent, BudgetSpent]] = {}
        """Amounts in the last report."""
        self._day: date | None = None
        self._as_of: Instant | None = None
        """Time of the last read from the ledger."""
        self._has_news = False
        """Whether the ledger has been read since the last report."""
        self._next_policy: Policy | None = None
        """Policy that may not yet be in force. Its budgets are also read from the ledger."""
        self._scopes = _BudgetScopes()
        self._in_force: PersistentMap[str, tuple[Budget, ...]] = PersistentMap()
        """Budgets of the policy in force."""
        self._read_scopes: PersistentMap[str, tuple[Budget, ...]] = PersistentMap()
        """Scopes of the last read from the ledger."""
        self._counts_units = False
        self._unavailable = False
        self._wake = asyncio.Event()
        self._reading = asyncio.Lock()

    async def start(self) -> None:
        """Makes the first report before requests are accepted, with the ledger's amounts if it responds quickly."""
        if not self._has_budgets():
            return
        if self._sums is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._at_start_s_max):
                    await self._read()
        self._report()

    async def run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(self._every_s, self._until_midnight_s())):
                    await self._wake.wait()
            self._wake.clear()
            if not self._has_budgets():
                continue
            if self._sums is None or calendar_at(self._now()).day != self._day:
                # Report the new day even if the database is slow or unreachable.
                self._report()
            if self._sums is not None:
                # Reading stops at midnight, even if the database is slow.
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._until_midnight_s()):
                        await self._read()
                self._report()

    def policy_changed(self) -> None:
        """Reports immediately if the budgets have changed."""
        policy, before = self._policy(), (self._in_force, self._counts_units)
        self._in_force, self._counts_units = self._scopes.of(policy), _counts_units(policy)
        if (self._in_force, self._counts_units) != before:
            self._wake.set()

    async def stop(self) -> None:
        if self._sums is not None:
            await self._sums.stop()

    def has_unread_budgets(self, policy: Policy) -> bool:
        """Returns whether the policy has budgets that have not been read from the ledger yet."""
        if self._sums is None:
            return False
        changes = self._scopes.of(policy).changes_since(self._read_scopes)
        return any(budgets is not None and scope not in self._read_scopes for scope, budgets in changes.items())

    async def prepare(self, policy: Policy) -> bool:
        """Reports the amounts spent under a policy that is about to take effect. Returns whether the ledger has been
        read.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._at_start_s_max):
                self._next_policy = policy
                await self._read()
        self._report()
        return not self.has_unread_budgets(policy)

    def _has_budgets(self) -> bool:
        policy = self._policy()
        return _counts_units(policy) or len(self._scopes.of(policy)) > 0

    def _report(self) -> None:
        calendar = calendar_at(self._now())
        if calendar.day != self._day:
            # The amounts are from another day.
            self._known, self._day, self._has_news = {}, calendar.day, False
        self._reported = {
            scope: _spent_events(scope, *amounts, self._reported.get(scope)) for scope, amounts in self._known.items()
        }
        ledger_read, self._has_news = self._has_news, False
        self._tell_host(calendar.event(tuple(chain.from_iterable(self._reported.values())), ledger_read=ledger_read))

    async def _read(self) -> None:
        assert self._sums is not None
        calendar, scopes = calendar_at(self._now()), self._scopes.of(self._policy())
        if self._next_policy is not None:
            others = self._scopes.of(self._next_policy).changes_since(scopes)
            scopes = scopes.updated({scope: budgets for scope, budgets in others.items() if budgets is not None})
        async with self._reading:
            problem = await self._sums.read(calendar, scopes)
        if problem is None:
            self._read_scopes = scopes
            self._known, self._day, self._as_of = self._sums.last, calendar.day, self._now()
            self._has_news = True
        if (problem is not None) is not self._unavailable:
            self._unavailable = problem is not None
            if problem is None:
                log_event(logging.INFO, "budget spending is read from the ledger again")
            else:
                message = "cannot read budget spending from the ledger; continuing with local counts"
                log_event(logging.WARNING, message, problem=problem)

    def _until_midnight_s(self) -> float:
        now = self._now()
        return max(0.0, (_instant(calendar_at(now).day + _DAY) - now) / SECOND) + 0.001

    # Status

    @property
    def as_of(self) -> datetime | None:
        """Time of the last read from the ledger."""
        if self._as_of is None:
            return None
        return datetime.fromtimestamp(self._as_of // SECOND, UTC)

    def budgets_left(self, tenant: TenantId | None = None) -> tuple[BudgetStatus, ...]:
        """Returns the remaining budgets based only on the ledger, for a process that does not count spending itself."""
        now, calendar = self._now(), calendar_at(self._now())
        ends = {Period.DAY: _instant(calendar.day + _DAY), Period.MONTH: _instant(calendar.next_month)}
        rows: list[BudgetStatus] = []
        by_scope = self._scopes.of(self._policy())
        scopes = by_scope if tenant is None else [f"tenant:{level}" for level in levels_of(tenant)]
        for scope in scopes:
            budgets = by_scope.get(scope) or ()
            of_day, of_month = self._known.get(scope, (NanoUsd(0), NanoUsd(0)))
            for each in budgets:
                known = of_day if each.period is Period.DAY else of_month
                reset_ns = Duration(ends[each.period] - now)
                rows.append(BudgetStatus(scope, each.period, each.hard, each.limit, known, NanoUsd(0), reset_ns))
        return tuple(rows)


def _spent_events(
    scope: str, of_day: NanoUsd, of_month: NanoUsd, said: tuple[BudgetSpent, BudgetSpent] | None
) -> tuple[BudgetSpent, BudgetSpent]:
    """Returns the amounts spent in a scope. Unchanged amounts are the same object, so that the receiver can skip
    them.
    """
    if said is not None and said[0].spent == of_day and said[1].spent == of_month:
        return said
    return BudgetSpent(scope, Period.DAY, of_day), BudgetSpent(scope, Period.MONTH, of_month)


class _SpendReader:
    """Reads the ledger over its own connection."""

    def __init__(self, url: str) -> None:
        from headgate.ledger.budget_spending import spending_by_scope
        from headgate.ledger.database import DATABASE_ERRORS, Database

        self._database, self._failures, self._spent = Database(url), DATABASE_ERRORS, spending_by_scope
        self.last: SpendingByScope = {}

    async def read(self, calendar: Calendar, scopes: Iterable[str]) -> str | None:
        """Reads the amounts. Returns a description of the problem, or None."""
        named = [scope.partition(":") for scope in scopes]
        tenants = [name for kind, _, name in named if kind == "tenant"]
        classes = [name for kind, _, name in named if kind == "class"]
        try:
            async with self._database.acquire() as link:
                day, month = calendar.day, calendar.month
                self.last = await self._spent(link, day=day, month=month, tenants=tenants, classes=classes)
        except self._failures as error:
            return self._database.describe(error)
        return None

    async def stop(self) -> None:
        await self._database.stop()


def _counts_units(policy: Policy) -> bool:
    """Whether a class has a cost limit per business unit and day."""
    return policy.unit_key is not None and any(each.cost_per_unit_max is not None for each in policy.classes)


class _BudgetScopes:
    """Budgets of a policy by scope. After a change of the policy, only tenants that differ are visited."""

    def __init__(self) -> None:
        self._tenants: PersistentMap[TenantId, Tenant] = PersistentMap()
        self._classes: dict[str, tuple[Budget, ...] | None] = {}
        self.by_scope: PersistentMap[str, tuple[Budget, ...]] = PersistentMap()

    def of(self, policy: Policy) -> PersistentMap[str, tuple[Budget, ...]]:
        """Returns the budgets of each scope that has any. It is the same object as before if they are the same."""
        before, self._tenants = self._tenants, tenant_table(policy.tenants).by_id
        changes: dict[str, tuple[Budget, ...] | None] = {
            f"tenant:{name}": (tenant.budgets or None) if tenant is not None else None
            for name, tenant in self._tenants.changes_since(before).items()
        }
        changes |= dict.fromkeys(self._classes)
        self._classes = {f"class:{each.name}": each.budgets or None for each in policy.classes}
        changes |= self._classes
        differing = {scope: budgets for scope, budgets in changes.items() if budgets != self.by_scope.get(scope)}
        self.by_scope = self.by_scope.updated(differing)
        return self.by_scope
