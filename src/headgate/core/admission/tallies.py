"""How much of each budget is spent and reserved in the present period?

A scope is a level of a tenant's path or a class; its budgets of one kind of period share a `BudgetTally`. Periods are
told (`BudgetsTold`), since there is no calendar here, together with what the ledger has. `budgets` describes the rules.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from typing import Final

from headgate.core.commands import BudgetCrossed
from headgate.core.counters import BudgetCounter
from headgate.core.events import BudgetsTold, Spent
from headgate.model.money import Budget, BudgetLeft, NanoUsd, Period
from headgate.model.policy import Policy
from headgate.model.units import MINUTE, ClassName, Duration, Instant, TenantId

PERCENTS: Final = (50, 80, 100)
_HOUR: Final = 60 * MINUTE
_SAME_PERIOD: Final = 12 * _HOUR
"""Two periods of one kind begin at least a day apart."""
_NOTHING: Final = NanoUsd(0)


class BudgetTally:
    """What is spent and reserved of one scope in one kind of period."""

    __slots__ = ("base", "budgets", "crossed", "known", "period", "reserved", "scope", "spent", "told")

    def __init__(self, scope: str, period: Period) -> None:
        self.scope = scope
        self.period = period
        self.budgets: tuple[Budget, ...] = ()
        self.spent = _NOTHING
        self.reserved = _NOTHING
        self.base: NanoUsd | None = None
        """What was spent when a part was first all that may be spent here; None where it is the whole."""
        self.known = False
        """Whether anybody has told what was spent before."""
        self.told: NanoUsd | None = None
        """What the ledger had last of this period."""
        self.crossed: dict[tuple[int, int], None] = {}
        """Of which limits how many percent were said to be spent in this period."""

    def change(self, budgets: tuple[Budget, ...]) -> None:
        self.budgets = budgets
        parted = any(each.parted for each in budgets)
        if not parted:
            self.base = None
        elif self.base is None:
            self.base = self.spent

    def take(self, spent: NanoUsd) -> bool:
        """So much is spent, by one who knows of more than what went through here; whether that is more."""
        more = spent > self.spent
        if more:
            self.spent = spent
        self.known = True
        if self.base is not None:
            self.base = self.spent
        return more

    def hear(self, spent: NanoUsd) -> bool:
        """So much the ledger has; whether that is more than was known."""
        self.told = spent
        return (self.base is None or not self.known) and self.take(spent)

    def begin_anew(self) -> None:
        self.spent, self.told = _NOTHING, None
        self.base = None if self.base is None else _NOTHING
        self.crossed.clear()

    def allowed(self, budget: Budget) -> int:
        """What may be spent of it in all."""
        if self.base is None:
            return budget.limit
        of, whole = budget.part
        return self.base + max(0, budget.limit - self.base) * of // whole

    def lacks(self, amount: NanoUsd) -> Budget | None:
        """The hard budget that has no room for so much."""
        for each in self.budgets:
            if each.hard and self.spent + self.reserved + amount > self.allowed(each):
                return each
        return None

    def over_soft(self) -> bool:
        return any(not each.hard and self.spent + self.reserved > each.limit for each in self.budgets)

    def news(self) -> Iterator[tuple[Budget, int]]:
        """Which marks of which budgets have been passed since this was last asked."""
        for each in self.budgets:
            if 100 * self.spent < PERCENTS[0] * each.limit:
                continue
            passed = [percent for percent in PERCENTS if 100 * self.spent >= percent * each.limit]
            fresh = [percent for percent in passed if (each.limit, percent) not in self.crossed]
            self.crossed.update(dict.fromkeys((each.limit, percent) for percent in passed))
            yield from ((each, percent) for percent in fresh)

    def left(self, budget: Budget, reset_ns: Duration | None) -> BudgetLeft:
        return BudgetLeft(self.scope, self.period, budget.hard, budget.limit, self.spent, self.reserved, reset_ns)


_Scope = tuple[tuple[Budget, ...], tuple[BudgetTally, ...]]
"""The budgets of a scope as they were declared, and how they are counted."""


class Tallies:
    """The tallies of all scopes, the periods they count in and the marks that have been passed."""

    __slots__ = (
        "_by_name",
        "_heard",
        "_heard_of",
        "_of_class",
        "_of_tenant",
        "_periods",
        "_scopes",
        "news",
        "soft",
    )

    def __init__(self) -> None:
        self._by_name: dict[tuple[str, Period], BudgetTally] = {}
        self._scopes: dict[str, _Scope] = {}
        """The same by their scopes."""
        self._of_tenant: dict[TenantId, tuple[BudgetTally, ...]] = {}
        """Of those who have asked: the tallies of their paths."""
        self._of_class: dict[ClassName, tuple[BudgetTally, ...]] = {}
        self.soft = False
        """Whether any budget is."""
        self._periods: dict[Period, tuple[Instant, Instant | None]] = {}
        """When those began that are counted here, and when they end, where somebody has told."""
        self._heard: tuple[Spent, ...] = ()
        """What the ledger had last."""
        self._heard_of: dict[tuple[str, Period], NanoUsd] | None = None
        """The same by what it is of, where somebody has asked since."""
        self.news: list[BudgetCrossed] = []
        """Yet to be told."""

    def __len__(self) -> int:
        return len(self._by_name)

    def change_policy(self, policy: Policy) -> None:
        """Takes the budgets of another policy. What is spent of those that stay is kept, nothing is reserved."""
        before = self._scopes
        declared = [(f"tenant:{each.id}", each.budgets) for each in policy.tenants if each.budgets]
        declared += [(f"class:{each.name}", each.budgets) for each in policy.classes if each.budgets]
        self._scopes = {scope: self._counted(scope, budgets, before.get(scope)) for scope, budgets in declared}
        if self._scopes != before:
            all_tallies = (each for _, tallies in self._scopes.values() for each in tallies)
            self._by_name = {(each.scope, each.period): each for each in all_tallies}
            self.soft = any(not each.hard for _, budgets in declared for each in budgets)
            self._of_tenant.clear()
        self._of_class = {each.name: self._named(f"class:{each.name}") for each in policy.classes}
        for tally in self._by_name.values():
            tally.reserved = _NOTHING

    def _counted(self, scope: str, budgets: tuple[Budget, ...], known: _Scope | None) -> _Scope:
        """How a scope is counted that has these budgets: as it was if they are the same."""
        if known is not None and known[0] == budgets:
            return known
        tallies: list[BudgetTally] = []
        for period in Period:
            if not (own := tuple(each for each in budgets if each.period is period)):
                continue
            tally = self._by_name.get((scope, period)) or BudgetTally(scope, period)
            tally.change(own)
            if (spent := self._heard_by_scope().get((scope, period))) is not None:
                tally.hear(spent)
            if tally.spent:
                self._tell_highest(tally)
            tallies.append(tally)
        return budgets, tuple(tallies)

    def _heard_by_scope(self) -> dict[tuple[str, Period], NanoUsd]:
        if self._heard_of is None:
            self._heard_of = {(each.scope, each.period): each.spent for each in self._heard}
        return self._heard_of

    def _named(self, scope: str) -> tuple[BudgetTally, ...]:
        known = self._scopes.get(scope)
        return () if known is None else known[1]

    def touched(self, tenant: TenantId, service_class: ClassName) -> tuple[BudgetTally, ...]:
        if not self._by_name:
            return ()
        if (path := self._of_tenant.get(tenant)) is None:
            steps = tenant.split("/")
            names = ("/".join(steps[:depth]) for depth in range(1, len(steps) + 1))
            path = self._of_tenant[tenant] = tuple(each for name in names for each in self._named(f"tenant:{name}"))
        return path + self._of_class.get(service_class, ())

    # Spending

    def spend(self, tallies: Iterable[BudgetTally], cost: NanoUsd) -> None:
        if cost:
            for tally in tallies:
                tally.spent = NanoUsd(tally.spent + cost)
                self._tell_crossed(tally)

    def _tell_crossed(self, tally: BudgetTally) -> None:
        for budget, percent in tally.news():
            self.news.append(BudgetCrossed(tally.left(budget, None), percent))

    def _tell_highest(self, tally: BudgetTally) -> None:
        """What others have spent may have passed several marks at once, of which the last says all."""
        for budget, percent in dict(tally.news()).items():
            self.news.append(BudgetCrossed(tally.left(budget, None), percent))

    def take_news(self, now: Instant) -> list[BudgetCrossed]:
        """What was crossed since this was last asked."""
        news = self.news[:]
        self.news.clear()
        return [
            replace(
                each,
                budget=replace(each.budget, reset_ns=self.reset_ns(each.budget.period, now)),
                began=self._periods.get(each.budget.period, (None,))[0],
            )
            for each in news
        ]

    # Periods

    def told(self, event: BudgetsTold) -> bool:
        """Which periods these are, and what the ledger has of them; whether another day has begun."""
        new_day = self._begin(Period.DAY, event.day_began, event.day_ends)
        self._begin(Period.MONTH, event.month_began, event.month_ends)
        before, self._heard, self._heard_of = self._heard, event.spent, None
        tallies = self._by_name
        for each, same in zip(event.spent, chain(before, repeat(None)), strict=False):
            # Most of many budgets are as they were when this was last told: who tells of them may say just the same.
            if each is not same:
                tally = tallies.get((each.scope, each.period))
                if tally is not None and tally.told != each.spent and tally.hear(each.spent):
                    self._tell_highest(tally)
        return new_day

    def _begin(self, period: Period, began: Instant, ends: Instant | None) -> bool:
        """Whether another period begins, of which nothing is spent yet."""
        known = self._periods.get(period)
        self._periods[period] = (began, ends)
        if known is None or abs(known[0] - began) < _SAME_PERIOD:
            return False
        self._heard = ()
        for tally in self._by_name.values():
            if tally.period is period:
                tally.begin_anew()
        return True

    def reset_ns(self, period: Period, now: Instant) -> Duration | None:
        ends = self._periods.get(period, (None, None))[1]
        return None if ends is None else Duration(max(0, ends - now))

    # For those who look

    def left(self, now: Instant, tenant: TenantId | None = None) -> tuple[BudgetLeft, ...]:
        """Where every budget stands; of a tenant, those of its path and no class's."""
        tallies = self._by_name.values() if tenant is None else self.touched(tenant, ClassName(""))
        return tuple(
            tally.left(budget, self.reset_ns(tally.period, now)) for tally in tallies for budget in tally.budgets
        )

    # For a successor, and from a predecessor

    def counters(self) -> tuple[BudgetCounter, ...]:
        """Of those of which more is spent than the ledger has."""
        began = {period: began for period, (began, _) in self._periods.items()}
        return tuple(
            BudgetCounter(tally.scope, tally.period, tally.spent, began.get(tally.period))
            for tally in self._by_name.values()
            if tally.spent > (tally.told or 0)
        )

    def restore(self, counters: Iterable[BudgetCounter]) -> None:
        """Goes on from what was counted, if it is of the same period as far as that is known here."""
        for each in counters:
            tally, known = self._by_name.get((each.scope, each.period)), self._periods.get(each.period)
            began = each.began
            if known is not None and began is not None and abs(known[0] - began) >= _SAME_PERIOD:
                continue
            if known is None and began is not None:
                self._periods[each.period] = (began, None)
            if tally is not None:
                tally.take(each.spent)
                # What was passed before has been told.
                list(tally.news())
