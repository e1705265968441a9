"""How much may still be spent, and by whom?

A tenant `acme/search/nightly` spends from the budgets of `acme`, of `acme/search` and of itself, as far as the policy
names them, and from those of its request's class. Theory of operation:

- *Reserve.* A request that comes in reserves what it may cost at most (`reckoning`) on every budget that it touches. It
  does not come in where that, what is reserved and what is spent are together more than a hard budget has. So of any
  number of requests that come at once only those are let in whose most there is room for.
- *Settle.* When it ends the reservation is given back, and what its bills come to is spent, as far as its tenant pays
  them. A bill may be more than was reserved for it: so much a budget may be overdrawn.
- *Periods* are told (`BudgetsTold`), since there is no calendar here. When another begins nothing is spent of it yet,
  and what is reserved stays. With them comes what the ledger has. It lags, and knows of what others have spent: the
  larger of both counts. So a bill that is told of late, and went to the ledger meanwhile, is not counted beside it.

A soft budget refuses nobody. Those whom it is for give up what the highest level of the ladder takes, until the period
ends or the budget is raised.

One who decides about a part of everything alone (`shares`) may spend its part of what was left when it began, and does
not listen to what the ledger says of the others meanwhile: it would count them against its own part.

What is not ideal: what a unit of business has cost is not told to a successor, which counts it from nothing. Nor is
what the ledger has: until a successor has heard as much from there, it may count less by what has ended since.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Final

from headgate.core.admission.limits import Shortage
from headgate.core.admission.reckoning import cheapest, cost_at, cost_most, cost_of, output_within
from headgate.core.admission.retry_after import LONGEST_COUNTED
from headgate.core.commands import BudgetCrossed
from headgate.core.counters import BudgetCounter
from headgate.core.events import AttemptReported, BudgetsTold, RequestSettled, Spent
from headgate.core.routing.fleet import Fleet
from headgate.core.rules import Rules
from headgate.core.state import Request
from headgate.model.money import NANO_USD_PER_USD, PAYERS, Bill, Budget, BudgetLeft, NanoUsd, Payer, Period
from headgate.model.outcome import Outcome
from headgate.model.policy import Promise
from headgate.model.ticket import WITHOUT_OUTPUT, Ticket
from headgate.model.units import MINUTE, ClassName, Duration, Instant, PoolName, RequestId, TenantId
from headgate.model.usage import Usage

PERCENTS: Final = (50, 80, 100)
UNITS_MAX: Final = 100_000
"""Of so many units of business it is known what they have cost; beyond them the one that has been quiet longest is
forgotten."""
_HOUR: Final = 60 * MINUTE
_SAME_PERIOD: Final = 12 * _HOUR
"""Two periods of one kind begin at least a day apart."""
_NOTHING: Final = NanoUsd(0)


class _Tally:
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


_Scope = tuple[tuple[Budget, ...], tuple[_Tally, ...]]
"""The budgets of a scope as they were declared, and how they are counted."""


class _Unit:
    """What the requests of one unit of business have cost today, and may cost yet."""

    __slots__ = ("reserved", "spent")

    def __init__(self) -> None:
        self.spent = self.reserved = 0


class _Claim:
    """What one request has reserved."""

    __slots__ = ("amount", "service_class", "tallies", "tenant", "unit")

    def __init__(self, tenant: TenantId, service_class: ClassName, amount: NanoUsd, unit: _Unit | None) -> None:
        self.tenant = tenant
        self.service_class = service_class
        self.amount = amount
        self.unit = unit
        self.tallies: tuple[_Tally, ...] = ()


class Budgets:
    __slots__ = (
        "_claims",
        "_counts",
        "_heard",
        "_heard_of",
        "_of_class",
        "_of_tenant",
        "_periods",
        "_rules",
        "_scopes",
        "_soft",
        "_tallies",
        "_thrifty",
        "_units",
        "_units_matter",
        "news",
        "units_max",
    )

    def __init__(self, rules: Rules, *, units_max: int = UNITS_MAX) -> None:
        self.units_max = units_max
        self._tallies: dict[tuple[str, Period], _Tally] = {}
        self._scopes: dict[str, _Scope] = {}
        """The same by their scopes."""
        self._of_tenant: dict[TenantId, tuple[_Tally, ...]] = {}
        """Of those who have asked: the tallies of their paths."""
        self._of_class: dict[ClassName, tuple[_Tally, ...]] = {}
        self._claims: dict[RequestId, _Claim] = {}
        self._units: dict[tuple[TenantId, str], _Unit] = {}
        """The one that was quiet longest comes first."""
        self._soft = False
        """Whether any budget is."""
        self._periods: dict[Period, tuple[Instant, Instant | None]] = {}
        """When those began that are counted here, and when they end, where somebody has told."""
        self._heard: tuple[Spent, ...] = ()
        """What the ledger had last."""
        self._heard_of: dict[tuple[str, Period], NanoUsd] | None = None
        """The same by what it is of, where somebody has asked since."""
        self.news: list[BudgetCrossed] = []
        """Yet to be told."""
        self._take(rules)

    # What holds

    def _take(self, rules: Rules) -> None:
        policy = rules.policy
        self._rules = rules
        self._counts = any(each.prices for each in policy.pools) or bool(self._tallies)
        costly = [each for each in policy.classes if each.promise is Promise.COST]
        self._units_matter = policy.unit is not None and any(each.unit_cost_max is not None for each in costly)
        self._thrifty = {
            each.name: each for each in costly if each.cost_max is not None or each.unit_cost_max is not None
        }

    def change_rules(self, rules: Rules) -> None:
        """Takes the budgets of another policy. What is spent and reserved of those that stay is kept."""
        policy, before = rules.policy, self._scopes
        declared = [(f"tenant:{each.id}", each.budgets) for each in policy.tenants if each.budgets]
        declared += [(f"class:{each.name}", each.budgets) for each in policy.classes if each.budgets]
        self._scopes = {scope: self._counted(scope, budgets, before.get(scope)) for scope, budgets in declared}
        if self._scopes != before:
            all_tallies = (each for _, tallies in self._scopes.values() for each in tallies)
            self._tallies = {(each.scope, each.period): each for each in all_tallies}
            self._soft = any(not each.hard for _, budgets in declared for each in budgets)
            self._of_tenant.clear()
        self._of_class = {each.name: self._named(f"class:{each.name}") for each in policy.classes}
        self._take(rules)
        for tally in self._tallies.values():
            tally.reserved = _NOTHING
        for claim in self._claims.values():
            self._attach(claim)

    def _counted(self, scope: str, budgets: tuple[Budget, ...], known: _Scope | None) -> _Scope:
        """How a scope is counted that has these budgets: as it was if they are the same."""
        if known is not None and known[0] == budgets:
            return known
        tallies: list[_Tally] = []
        for period in Period:
            if not (own := tuple(each for each in budgets if each.period is period)):
                continue
            tally = self._tallies.get((scope, period)) or _Tally(scope, period)
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

    def _named(self, scope: str) -> tuple[_Tally, ...]:
        known = self._scopes.get(scope)
        return () if known is None else known[1]

    def _touched(self, tenant: TenantId, service_class: ClassName) -> tuple[_Tally, ...]:
        if not self._tallies:
            return ()
        if (path := self._of_tenant.get(tenant)) is None:
            steps = tenant.split("/")
            names = ("/".join(steps[:depth]) for depth in range(1, len(steps) + 1))
            path = self._of_tenant[tenant] = tuple(each for name in names for each in self._named(f"tenant:{name}"))
        return path + self._of_class.get(service_class, ())

    # Arrival

    def level(self, request: Request) -> int:
        """The level of the ladder at which a request is served because of soft budgets that are spent."""
        if not self._soft:
            return 0
        touched = self._touched(request.ticket.tenant, request.service_class.name)
        return self._rules.policy.ladder.level_max if any(each.over_soft() for each in touched) else 0

    def economise(self, request: Request, fleet: Fleet, now: Instant) -> bool:
        """Keeps a request of a class that stays cheap within what it may cost, by where it goes and how long its
        answer may be; whether anything was changed.
        """
        most = self._most(request)
        if most is None:
            return False
        pools = _pools_for(request, most, fleet, self._rules, now)
        changed, request.pools = pools != request.pools, pools
        if request.ticket.api in WITHOUT_OUTPUT:
            return changed
        tokens, caps = output_within(request, most, self._rules, now), request.service_class.caps
        if tokens is None or (caps.output_tokens is not None and caps.output_tokens <= tokens):
            return changed
        # An engine that is asked for no token at all takes it for a mistake: such a request is refused before.
        request.service_class = replace(request.service_class, caps=replace(caps, output_tokens=max(1, tokens)))
        return True

    def thrifty(self, request: Request) -> bool:
        """Whether it may have been kept from pools because of what they cost."""
        return request.service_class.name in self._thrifty

    def shortage(self, request: Request, now: Instant) -> Shortage | None:
        """Why there is no money for a request; notes on it what it may cost at most."""
        if not self._counts:
            return None
        request.reserved = cost_most(request, self._rules, now)
        if (most := self._most(request)) is not None and request.reserved > most:
            return self._too_dear(request, most, now)
        for tally in self._touched(request.ticket.tenant, request.service_class.name):
            if (budget := tally.lacks(request.reserved)) is not None:
                return self._spent(tally, budget, request.reserved, now)
        return None

    def _most(self, request: Request) -> int | None:
        """What it may cost by its class; None where that does not matter."""
        declared = self._thrifty.get(request.service_class.name)
        if declared is None:
            return None
        limits = [] if declared.cost_max is None else [int(declared.cost_max)]
        if declared.unit_cost_max is not None and (unit := self._unit(request.ticket)) is not None:
            claim = self._claims.get(request.ticket.request_id)
            own = 0 if claim is None else claim.amount
            limits.append(max(0, declared.unit_cost_max - unit.spent - unit.reserved + own))
        return min(limits, default=None)

    def _too_dear(self, request: Request, most: int, now: Instant) -> Shortage:
        declared, wait = self._thrifty[request.service_class.name], LONGEST_COUNTED
        may = f'in class "{declared.name}" it may cost {dollars(most)}'
        if declared.cost_max is None or most < declared.cost_max:
            unit, wait = _unit_of(request.ticket, self._rules), self._reset_ns(Period.DAY, now)
            may = f'{self._rules.policy.unit} "{unit}" may cost {dollars(most)} more today in class "{declared.name}"'
        reason = f"the prompt alone, with an answer of a token, comes to {dollars(request.reserved)}, and {may}"
        # No wait would help a prompt that is too dear by itself; of those who ask when to come back all are told when.
        return Shortage(Outcome.OVER_BUDGET, f"{reason}; shorten the prompt or use another class", wait)

    def _spent(self, tally: _Tally, budget: Budget, amount: NanoUsd, now: Instant) -> Shortage:
        wait, kind = self._reset_ns(tally.period, now), tally.scope.partition(":")
        reason = (
            f'of the {dollars(budget.limit)} that {kind[0]} "{kind[2]}" may spend in a {tally.period} '
            f"{dollars(tally.spent)} are spent and {dollars(tally.reserved)} reserved by requests that have not ended; "
            f"this one may take {dollars(amount)}"
        )
        if tally.base is not None:
            allowed = dollars(max(0, tally.allowed(budget) - tally.base))
            reason += f", and as long as not all gateways answer no more than {allowed} of what was left is spent here"
        until = f"until the {tally.period} ends" + ("" if wait is None else f", in {_span(wait)}")
        return Shortage(Outcome.OVER_BUDGET, f"{reason}; ask for a larger budget, or wait {until}", wait)

    def reserve(self, request: Request) -> None:
        """It comes in."""
        if not self._counts:
            return
        unit = self._unit(request.ticket)
        if unit is not None:
            unit.reserved += request.reserved
        claim = _Claim(request.ticket.tenant, request.service_class.name, request.reserved, unit)
        self._claims[request.ticket.request_id] = claim
        self._attach(claim)

    def adopt(self, request: Request, now: Instant) -> None:
        """It was let in by another scheduler: reserves for it whatever is left."""
        request.reserved = cost_most(request, self._rules, now)
        self.reserve(request)

    def move(self, request: Request, now: Instant) -> None:
        """It has another class or other pools: what it may cost there is reserved instead."""
        if (claim := self._claims.pop(request.ticket.request_id, None)) is not None:
            self._give_back(claim)
            self.adopt(request, now)

    def _give_back(self, claim: _Claim) -> None:
        if claim.unit is not None:
            claim.unit.reserved -= claim.amount
        for tally in claim.tallies:
            tally.reserved = NanoUsd(tally.reserved - claim.amount)

    def _attach(self, claim: _Claim) -> None:
        claim.tallies = self._touched(claim.tenant, claim.service_class)
        for tally in claim.tallies:
            tally.reserved = NanoUsd(tally.reserved + claim.amount)

    # The end

    def settle(self, request: Request, bills: Sequence[Bill]) -> NanoUsd:
        """It is over: gives back what was reserved, which is the answer, and spends what its tenant pays."""
        claim, cost = self._claims.pop(request.ticket.request_id, None), paid_by_tenant(bills)
        if claim is None:
            # When it came in nothing had a price.
            self._spend(self._touched(request.ticket.tenant, request.service_class.name), cost)
            return _NOTHING
        self._give_back(claim)
        if claim.unit is not None:
            claim.unit.spent += cost
        self._spend(claim.tallies, cost)
        return claim.amount

    def settled_before(self, told: RequestSettled | AttemptReported, usage: Usage, now: Instant) -> None:
        """A request has ended under another scheduler, and the counters do not have what it cost."""
        service_class = ClassName("") if told.service_class is None else told.service_class
        tallies, cost = self._touched(told.ticket.tenant, service_class), told.cost
        if cost is not None:
            # Its bill has gone to the ledger, too: where that is heard, it is told of with the rest.
            self._spend((each for each in tallies if each.told is None), cost)
        elif told.pool is not None:
            self._spend(tallies, cost_of(usage, told.pool, self._rules, now))

    def _spend(self, tallies: Iterable[_Tally], cost: NanoUsd) -> None:
        if cost:
            for tally in tallies:
                tally.spent = NanoUsd(tally.spent + cost)
                self._tell_crossed(tally)

    def _tell_crossed(self, tally: _Tally) -> None:
        for budget, percent in tally.news():
            self.news.append(BudgetCrossed(tally.left(budget, None), percent))

    def _tell_highest(self, tally: _Tally) -> None:
        """What others have spent may have passed several marks at once, of which the last says all."""
        for budget, percent in dict(tally.news()).items():
            self.news.append(BudgetCrossed(tally.left(budget, None), percent))

    def take_news(self, now: Instant) -> list[BudgetCrossed]:
        """What was crossed since this was last asked."""
        news, self.news = self.news, []
        return [
            replace(
                each,
                budget=replace(each.budget, reset_ns=self._reset_ns(each.budget.period, now)),
                began=self._periods.get(each.budget.period, (None,))[0],
            )
            for each in news
        ]

    # Periods

    def told(self, event: BudgetsTold) -> None:
        """Which periods these are, and what the ledger has of them."""
        self._begin(Period.DAY, event.day_began, event.day_ends)
        self._begin(Period.MONTH, event.month_began, event.month_ends)
        before, self._heard, self._heard_of = self._heard, event.spent, None
        tallies = self._tallies
        for each, same in zip(event.spent, chain(before, repeat(None)), strict=False):
            # Most of many budgets are as they were when this was last told: who tells of them may say just the same.
            if each is not same:
                tally = tallies.get((each.scope, each.period))
                if tally is not None and tally.told != each.spent and tally.hear(each.spent):
                    self._tell_highest(tally)

    def _begin(self, period: Period, began: Instant, ends: Instant | None) -> None:
        known = self._periods.get(period)
        self._periods[period] = (began, ends)
        if known is None or abs(known[0] - began) < _SAME_PERIOD:
            return
        self._heard = ()
        for tally in self._tallies.values():
            if tally.period is period:
                tally.begin_anew()
        if period is Period.DAY:
            for unit in self._units.values():
                unit.spent = 0

    def _reset_ns(self, period: Period, now: Instant) -> Duration | None:
        ends = self._periods.get(period, (None, None))[1]
        return None if ends is None else Duration(max(0, ends - now))

    # Units of business

    def _unit(self, ticket: Ticket) -> _Unit | None:
        """What its unit has cost; None where it names none, or nobody asks."""
        name = _unit_of(ticket, self._rules) if self._units_matter else None
        if name is None:
            return None
        key = (ticket.tenant, name)
        unit = self._units.pop(key, None)
        if unit is None:
            unit = _Unit()
            if len(self._units) >= self.units_max:
                del self._units[next(iter(self._units))]
        self._units[key] = unit
        return unit

    # For those who look

    def left(self, now: Instant, tenant: TenantId | None = None) -> tuple[BudgetLeft, ...]:
        """Where every budget stands; of a tenant, those of its path and no class's."""
        tallies = self._tallies.values() if tenant is None else self._touched(tenant, ClassName(""))
        return tuple(
            tally.left(budget, self._reset_ns(tally.period, now)) for tally in tallies for budget in tally.budgets
        )

    # For a successor, and from a predecessor

    def counters(self) -> tuple[BudgetCounter, ...]:
        """Of those of which more is spent than the ledger has."""
        began = {period: began for period, (began, _) in self._periods.items()}
        return tuple(
            BudgetCounter(tally.scope, tally.period, tally.spent, began.get(tally.period))
            for tally in self._tallies.values()
            if tally.spent > (tally.told or 0)
        )

    def restore(self, counters: Iterable[BudgetCounter]) -> None:
        """Goes on from what was counted, if it is of the same period as far as that is known here."""
        for each in counters:
            tally, known = self._tallies.get((each.scope, each.period)), self._periods.get(each.period)
            began = each.began
            if known is not None and began is not None and abs(known[0] - began) >= _SAME_PERIOD:
                continue
            if known is None and began is not None:
                self._periods[each.period] = (began, None)
            if tally is not None:
                tally.take(each.spent)
                # What was passed before has been told.
                list(tally.news())


def paid_by_tenant(bills: Iterable[Bill]) -> NanoUsd:
    whole = 0
    for bill in bills:
        if PAYERS[bill.cause] is Payer.TENANT:
            whole += bill.input + bill.output + bill.overhead
    return NanoUsd(whole)


def dollars(amount: int) -> str:
    """As people read it: cents, or as many digits as a small amount needs."""
    value = amount / NANO_USD_PER_USD
    return f"${value:,.2f}" if value >= 1 or not amount else f"${value:.3g}"


def _span(length: Duration) -> str:
    minutes = -(-length // MINUTE)
    hours, rest = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {rest} min" if hours else f"{rest} min"


def _unit_of(ticket: Ticket, rules: Rules) -> str | None:
    return next((value for key, value in ticket.metadata if key == rules.policy.unit), None)


def _pools_for(request: Request, most: int, fleet: Fleet, rules: Rules, now: Instant) -> tuple[PoolName, ...]:
    """Of its pools those where it costs least, of those that take work.

    Where none does nobody knows which will: then all are left that are starting, or all, as far as it may go there.
    """
    if live := tuple(pool for pool in request.pools if fleet.live((pool,))):
        return cheapest(request, live, rules, now)
    pools = tuple(pool for pool in request.pools if fleet.warming((pool,))) or request.pools
    within = tuple(pool for pool in pools if cost_at(request, pool, request.answers, rules, now) <= most)
    return within or cheapest(request, pools, rules, now)
