"""Amounts spent from and reserved on each budget in the current period.

A scope is a class or one level of a tenant's path. Budgets of one scope with the same kind of period share a
`BudgetTally`. The event `BudgetsSynced` provides the periods and the ledger amounts, because the core has no calendar.
`budgets` describes the rules.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from typing import Final

from headgate.core.account_shares import whole_share
from headgate.core.commands import BudgetCrossed
from headgate.core.counters import BudgetCounter
from headgate.core.events import BudgetSpent, BudgetsSynced
from headgate.model.limits import WHOLE_PPM, LimitShare
from headgate.model.money import Budget, BudgetStatus, NanoUsd, Period
from headgate.model.persistent_map import PersistentMap
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant, levels_of, tenant_table
from headgate.model.units import MINUTE, ClassName, Duration, Instant, TenantId

NOTIFY_PERCENTS: Final = (50, 80, 100)
_HOUR: Final = 60 * MINUTE
_SAME_PERIOD: Final = 12 * _HOUR
"""Start times closer than this belong to the same period, because periods of one kind start at least a day apart."""
_NOTHING: Final = NanoUsd(0)


class BudgetTally:
    """Amounts that one scope has spent and reserved in one kind of period."""

    __slots__ = (
        "budgets",
        "crossed",
        "ledger_spent",
        "next_share_ppm",
        "period",
        "reserved",
        "scope",
        "share_base",
        "share_ppm",
        "spent",
        "synced",
    )

    def __init__(self, scope: str, period: Period) -> None:
        self.scope = scope
        self.period = period
        self.budgets: tuple[Budget, ...] = ()
        self.spent = _NOTHING
        self.reserved = _NOTHING
        self.share_base: NanoUsd | None = None
        """Amount already spent when the budget was limited to a share. None if the whole budget may be spent here."""
        self.share_ppm = WHOLE_PPM
        """Share of the amount left that this cell may spend, if other cells have the rest."""
        self.next_share_ppm = WHOLE_PPM
        """Share from the next read of the ledger on. A lower share applies at once."""
        self.synced = False
        """Whether the spent amount has been synced with the ledger or a predecessor."""
        self.ledger_spent: NanoUsd | None = None
        """Latest ledger amount for this period."""
        self.crossed: dict[tuple[int, int], None] = {}
        """Thresholds already reported in this period, as an ordered set of (limit, percent)."""

    def change(self, budgets: tuple[Budget, ...]) -> None:
        self.budgets = budgets
        parted = any(each.is_shared for each in budgets)
        if not parted:
            self.share_base = None
        elif self.share_base is None:
            self.share_base = self.spent

    def change_share(self, share_ppm: int) -> bool:
        """Changes this cell's share. Returns whether it is higher and waits for the next read of the ledger or period.

        Until then, this cell does not know what other cells have spent of the share that it gets.
        """
        self.next_share_ppm = share_ppm
        self.share_ppm = min(self.share_ppm, share_ppm)
        return self.share_ppm < share_ppm

    def raise_spent(self, spent: NanoUsd) -> bool:
        """Raises the spent amount to a total that includes spending elsewhere. Returns whether the amount increased."""
        more = spent > self.spent
        if more:
            self.spent = spent
        self.synced = True
        if self.share_base is not None:
            self.share_base = self.spent
        return more

    def sync_ledger(self, spent: NanoUsd) -> bool:
        """Applies the ledger amount. Returns whether the spent amount increased."""
        self.ledger_spent, self.share_ppm = spent, self.next_share_ppm
        return (self.share_base is None or not self.synced) and self.raise_spent(spent)

    def reset(self) -> None:
        self.spent, self.ledger_spent = _NOTHING, None
        self.share_ppm = self.next_share_ppm
        self.share_base = None if self.share_base is None else _NOTHING
        self.crossed.clear()

    def allowed(self, budget: Budget) -> int:
        """Returns the total amount that may be spent here."""
        base = self.share_base
        if base is None:
            if self.share_ppm == WHOLE_PPM:
                return budget.limit
            base = self.ledger_spent or _NOTHING
        of, whole = budget.share
        return base + max(0, budget.limit - base) * of * self.share_ppm // (whole * WHOLE_PPM)

    def exceeded_budget(self, amount: NanoUsd) -> Budget | None:
        """Returns the first hard budget that `amount` would exceed."""
        for each in self.budgets:
            if each.hard and self.spent + self.reserved + amount > self.allowed(each):
                return each
        return None

    def over_soft(self) -> bool:
        return any(not each.hard and self.spent + self.reserved > each.limit for each in self.budgets)

    def pop_crossings(self) -> Iterator[tuple[Budget, int]]:
        """Yields the budgets and thresholds (in percent) that were crossed since the last call."""
        for each in self.budgets:
            if 100 * self.spent < NOTIFY_PERCENTS[0] * each.limit:
                continue
            passed = [percent for percent in NOTIFY_PERCENTS if 100 * self.spent >= percent * each.limit]
            fresh = [percent for percent in passed if (each.limit, percent) not in self.crossed]
            self.crossed.update(dict.fromkeys((each.limit, percent) for percent in passed))
            yield from ((each, percent) for percent in fresh)

    def left(self, budget: Budget, reset_ns: Duration | None) -> BudgetStatus:
        return BudgetStatus(self.scope, self.period, budget.hard, budget.limit, self.spent, self.reserved, reset_ns)


_Scope = tuple[tuple[Budget, ...], tuple[BudgetTally, ...]]
"""Declared budgets of a scope, and their tallies."""


class BudgetTallies:
    """Tallies of all scopes, with their periods and crossed thresholds."""

    __slots__ = (
        "_by_name",
        "_ledger",
        "_ledger_by_scope",
        "_of_class",
        "_of_tenant",
        "_periods",
        "_scopes",
        "_soft_scopes",
        "_tenants",
        "_waiting",
        "crossings",
        "share_of",
    )

    def __init__(self) -> None:
        self.share_of: Callable[[TenantId], LimitShare] = whole_share
        """Returns the share of a tenant's budgets that this cell may spend."""
        self._by_name: dict[tuple[str, Period], BudgetTally] = {}
        self._scopes: dict[str, _Scope] = {}
        """Budgets and tallies by scope."""
        self._of_tenant: dict[TenantId, tuple[BudgetTally, ...]] = {}
        """Cache of the tallies on each tenant's path."""
        self._of_class: dict[ClassName, tuple[BudgetTally, ...]] = {}
        self._soft_scopes: dict[str, None] = {}
        """Scopes with a soft budget, as an ordered set."""
        self._tenants: PersistentMap[TenantId, Tenant] = PersistentMap()
        self._periods: dict[Period, tuple[Instant, Instant | None]] = {}
        """Start and, if known, end of the current period of each kind."""
        self._ledger: tuple[BudgetSpent, ...] = ()
        """Latest ledger amounts."""
        self._ledger_by_scope: dict[tuple[str, Period], NanoUsd] | None = None
        """Index of `_ledger`, built on first use."""
        self._waiting: dict[tuple[str, Period], BudgetTally] = {}
        """Tallies whose higher share waits for the next read of the ledger."""
        self.crossings: list[BudgetCrossed] = []
        """Crossed thresholds that have not been reported yet."""

    def __len__(self) -> int:
        return len(self._by_name)

    def change_policy(self, policy: Policy, *, only_tenants: bool = False) -> bool:
        """Applies the budgets of a new policy. Budgets that remain keep their amounts.

        Returns whether there were any changes. With `only_tenants`, the classes are the same as before. Only the
        tenants that differ are visited.
        """
        before, self._tenants = self._tenants, tenant_table(policy.tenants).by_id
        changed = False
        for name, tenant in self._tenants.changes_since(before).items():
            changed |= self._change_scope(f"tenant:{name}", () if tenant is None else tenant.budgets)
        if not only_tenants:
            for each in self._of_class:
                if all(each != declared.name for declared in policy.classes):
                    changed |= self._change_scope(f"class:{each}", ())
            for declared in policy.classes:
                changed |= self._change_scope(f"class:{declared.name}", declared.budgets)
            self._of_class = {each.name: self._of_scope(f"class:{each.name}") for each in policy.classes}
        if changed:
            self._of_tenant.clear()
        return changed

    @property
    def soft(self) -> bool:
        """Whether any budget is soft."""
        return bool(self._soft_scopes)

    def _change_scope(self, scope: str, budgets: tuple[Budget, ...]) -> bool:
        """Applies the budgets of a scope. Returns whether they differ from those before."""
        known = self._scopes.get(scope)
        if budgets == (() if known is None else known[0]):
            return False
        self._soft_scopes.pop(scope, None)
        if any(not each.hard for each in budgets):
            self._soft_scopes[scope] = None
        tallies = self._tally_scope(scope, budgets)
        for period in Period:
            self._by_name.pop((scope, period), None)
        self._by_name.update({(scope, each.period): each for each in tallies})
        if budgets:
            self._scopes[scope] = (budgets, tallies)
        else:
            del self._scopes[scope]
        return True

    def change_shares(self, tenants: Iterable[TenantId]) -> None:
        if self._by_name:
            for name in tenants:
                for tally in self._of_scope(f"tenant:{name}"):
                    if tally.change_share(self.share_of(name).tokens_ppm):
                        self._waiting[tally.scope, tally.period] = tally

    def _new_tally(self, scope: str, period: Period) -> BudgetTally:
        tally = BudgetTally(scope, period)
        kind, _, name = scope.partition(":")
        if kind == "tenant":
            tally.change_share(self.share_of(TenantId(name)).tokens_ppm)
        return tally

    def _tally_scope(self, scope: str, budgets: tuple[Budget, ...]) -> tuple[BudgetTally, ...]:
        """Returns the tallies of a scope with these budgets. A tally is kept if its kind of period remains."""
        tallies: list[BudgetTally] = []
        for period in Period:
            if not (own := tuple(each for each in budgets if each.period is period)):
                continue
            tally = self._by_name.get((scope, period)) or self._new_tally(scope, period)
            tally.change(own)
            if (spent := self._ledger_index().get((scope, period))) is not None:
                tally.sync_ledger(spent)
            if tally.spent:
                self._record_highest(tally)
            tallies.append(tally)
        return tuple(tallies)

    def _ledger_index(self) -> dict[tuple[str, Period], NanoUsd]:
        if self._ledger_by_scope is None:
            self._ledger_by_scope = {(each.scope, each.period): each.spent for each in self._ledger}
        return self._ledger_by_scope

    def _of_scope(self, scope: str) -> tuple[BudgetTally, ...]:
        known = self._scopes.get(scope)
        return () if known is None else known[1]

    def tallies_for(self, tenant: TenantId, service_class: ClassName) -> tuple[BudgetTally, ...]:
        if not self._by_name:
            return ()
        if (path := self._of_tenant.get(tenant)) is None:
            names = levels_of(tenant)
            path = self._of_tenant[tenant] = tuple(each for name in names for each in self._of_scope(f"tenant:{name}"))
        return path + self._of_class.get(service_class, ())

    # Spending

    def spend(self, tallies: Iterable[BudgetTally], cost: NanoUsd) -> None:
        if cost:
            for tally in tallies:
                tally.spent = NanoUsd(tally.spent + cost)
                self._record_crossed(tally)

    def _record_crossed(self, tally: BudgetTally) -> None:
        for budget, percent in tally.pop_crossings():
            self.crossings.append(BudgetCrossed(tally.left(budget, None), percent))

    def _record_highest(self, tally: BudgetTally) -> None:
        """Records only the highest crossed threshold, because a ledger update can cross several at once."""
        for budget, percent in dict(tally.pop_crossings()).items():
            self.crossings.append(BudgetCrossed(tally.left(budget, None), percent))

    def pop_crossings(self, now: Instant) -> list[BudgetCrossed]:
        """Removes and returns the crossed thresholds that have not been reported yet."""
        news = self.crossings[:]
        self.crossings.clear()
        return [
            replace(
                each,
                budget=replace(each.budget, reset_ns=self.reset_ns(each.budget.period, now)),
                began=self._periods.get(each.budget.period, (None,))[0],
            )
            for each in news
        ]

    # Periods

    def sync(self, event: BudgetsSynced) -> bool:
        """Applies the current periods and ledger amounts. Returns whether a new day has begun."""
        new_day = self._begin_period(Period.DAY, event.day_began, event.day_ends)
        self._begin_period(Period.MONTH, event.month_began, event.month_ends)
        before, self._ledger, self._ledger_by_scope = self._ledger, event.spent, None
        tallies = self._by_name
        for each, same in zip(event.spent, chain(before, repeat(None)), strict=False):
            # Most amounts are unchanged, and the sender may reuse the same objects for them.
            if each is not same:
                tally = tallies.get((each.scope, each.period))
                if tally is not None and tally.ledger_spent != each.spent and tally.sync_ledger(each.spent):
                    self._record_highest(tally)
        if event.ledger_read:
            # The ledger may have no amount for a scope, or the same one as before.
            for tally in self._waiting.values():
                tally.share_ppm = tally.next_share_ppm
            self._waiting.clear()
        return new_day

    def _begin_period(self, period: Period, began: Instant, ends: Instant | None) -> bool:
        """Sets the current period of a kind. If the period is new, resets its tallies. Returns whether it is new."""
        known = self._periods.get(period)
        self._periods[period] = (began, ends)
        if known is None or abs(known[0] - began) < _SAME_PERIOD:
            return False
        self._ledger = ()
        for tally in self._by_name.values():
            if tally.period is period:
                tally.reset()
        return True

    def reset_ns(self, period: Period, now: Instant) -> Duration | None:
        ends = self._periods.get(period, (None, None))[1]
        return None if ends is None else Duration(max(0, ends - now))

    # Reporting

    def left(self, now: Instant, tenant: TenantId | None = None) -> tuple[BudgetStatus, ...]:
        """Returns the state of all budgets, or of those on one tenant's path (excluding class budgets)."""
        tallies = self._by_name.values() if tenant is None else self.tallies_for(tenant, ClassName(""))
        return tuple(
            tally.left(budget, self.reset_ns(tally.period, now)) for tally in tallies for budget in tally.budgets
        )

    # Handover between schedulers

    def counters(self) -> tuple[BudgetCounter, ...]:
        """Returns the tallies whose spent amount exceeds the ledger amount."""
        began = {period: began for period, (began, _) in self._periods.items()}
        return tuple(
            BudgetCounter(tally.scope, tally.period, tally.spent, began.get(tally.period))
            for tally in self._by_name.values()
            if tally.spent > (tally.ledger_spent or 0)
        )

    def restore(self, counters: Iterable[BudgetCounter]) -> None:
        """Restores spent amounts, except those known to be from another period."""
        for each in counters:
            tally, known = self._by_name.get((each.scope, each.period)), self._periods.get(each.period)
            began = each.began
            if known is not None and began is not None and abs(known[0] - began) >= _SAME_PERIOD:
                continue
            if known is None and began is not None:
                self._periods[each.period] = (began, None)
            if tally is not None:
                tally.raise_spent(each.spent)
                # The predecessor has already reported these thresholds.
                list(tally.pop_crossings())
