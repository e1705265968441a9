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

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from headgate.core.admission.business_units import BusinessUnit, BusinessUnits, unit_name
from headgate.core.admission.limits import Shortage
from headgate.core.admission.reckoning import cheapest, cost_at, cost_most, cost_of, output_within
from headgate.core.admission.retry_after import LONGEST_COUNTED
from headgate.core.admission.tallies import BudgetTally, Tallies
from headgate.core.commands import BudgetCrossed
from headgate.core.counters import BudgetCounter
from headgate.core.events import AttemptReported, BudgetsTold, RequestSettled
from headgate.core.routing.fleet import Fleet
from headgate.core.rules import Rules
from headgate.core.state import Request
from headgate.model.money import NANO_USD_PER_USD, PAYERS, Bill, Budget, BudgetLeft, NanoUsd, Payer, Period
from headgate.model.outcome import Outcome
from headgate.model.policy import Promise
from headgate.model.ticket import WITHOUT_OUTPUT, Ticket
from headgate.model.units import MINUTE, ClassName, Duration, Instant, PoolName, RequestId, TenantId
from headgate.model.usage import Usage

_NOTHING: Final = NanoUsd(0)


class _Claim:
    """What one request has reserved."""

    __slots__ = ("amount", "service_class", "tallies", "tenant", "unit")

    def __init__(self, tenant: TenantId, service_class: ClassName, amount: NanoUsd, unit: BusinessUnit | None) -> None:
        self.tenant = tenant
        self.service_class = service_class
        self.amount = amount
        self.unit = unit
        self.tallies: tuple[BudgetTally, ...] = ()


class Budgets:
    __slots__ = ("_claims", "_counts", "_rules", "_tallies", "_thrifty", "_units", "_units_matter", "news")

    def __init__(self, rules: Rules) -> None:
        self._tallies = Tallies()
        self.news = self._tallies.news
        """What was crossed and has yet to be told."""
        self._claims: dict[RequestId, _Claim] = {}
        self._units = BusinessUnits()
        self._take(rules)

    # What holds

    def _take(self, rules: Rules) -> None:
        policy = rules.policy
        self._rules = rules
        self._counts = any(each.prices for each in policy.pools) or len(self._tallies) > 0
        costly = [each for each in policy.classes if each.promise is Promise.COST]
        self._units_matter = policy.unit is not None and any(each.unit_cost_max is not None for each in costly)
        self._thrifty = {
            each.name: each for each in costly if each.cost_max is not None or each.unit_cost_max is not None
        }

    def change_rules(self, rules: Rules) -> None:
        """Takes the budgets of another policy. What is spent and reserved of those that stay is kept."""
        self._tallies.change_policy(rules.policy)
        self._take(rules)
        for claim in self._claims.values():
            self._attach(claim)

    # Arrival

    def level(self, request: Request) -> int:
        """The level of the ladder at which a request is served because of soft budgets that are spent."""
        if not self._tallies.soft:
            return 0
        touched = self._tallies.touched(request.ticket.tenant, request.service_class.name)
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
        for tally in self._tallies.touched(request.ticket.tenant, request.service_class.name):
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
            unit, wait = unit_name(request.ticket, self._rules), self._tallies.reset_ns(Period.DAY, now)
            may = f'{self._rules.policy.unit} "{unit}" may cost {dollars(most)} more today in class "{declared.name}"'
        reason = f"the prompt alone, with an answer of a token, comes to {dollars(request.reserved)}, and {may}"
        # No wait would help a prompt that is too dear by itself; of those who ask when to come back all are told when.
        return Shortage(Outcome.OVER_BUDGET, f"{reason}; shorten the prompt or use another class", wait)

    def _spent(self, tally: BudgetTally, budget: Budget, amount: NanoUsd, now: Instant) -> Shortage:
        wait, kind = self._tallies.reset_ns(tally.period, now), tally.scope.partition(":")
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
        claim.tallies = self._tallies.touched(claim.tenant, claim.service_class)
        for tally in claim.tallies:
            tally.reserved = NanoUsd(tally.reserved + claim.amount)

    def _unit(self, ticket: Ticket) -> BusinessUnit | None:
        """What its unit has cost; None where it names none, or nobody asks."""
        name = unit_name(ticket, self._rules) if self._units_matter else None
        return None if name is None else self._units.named(ticket.tenant, name)

    # The end

    def settle(self, request: Request, bills: Sequence[Bill]) -> NanoUsd:
        """It is over: gives back what was reserved, which is the answer, and spends what its tenant pays."""
        claim, cost = self._claims.pop(request.ticket.request_id, None), paid_by_tenant(bills)
        if claim is None:
            # When it came in nothing had a price.
            self._tallies.spend(self._tallies.touched(request.ticket.tenant, request.service_class.name), cost)
            return _NOTHING
        self._give_back(claim)
        if claim.unit is not None:
            claim.unit.spent += cost
        self._tallies.spend(claim.tallies, cost)
        return claim.amount

    def settled_before(self, told: RequestSettled | AttemptReported, usage: Usage, now: Instant) -> None:
        """A request has ended under another scheduler, and the counters do not have what it cost."""
        service_class = ClassName("") if told.service_class is None else told.service_class
        tallies, cost = self._tallies.touched(told.ticket.tenant, service_class), told.cost
        if cost is not None:
            # Its bill has gone to the ledger, too: where that is heard, it is told of with the rest.
            self._tallies.spend((each for each in tallies if each.told is None), cost)
        elif told.pool is not None:
            self._tallies.spend(tallies, cost_of(usage, told.pool, self._rules, now, prompts=told.ticket.prompts))

    def told(self, event: BudgetsTold) -> None:
        """Which periods these are, and what the ledger has of them."""
        if self._tallies.told(event):
            self._units.begin_day()

    # For those who look

    def take_news(self, now: Instant) -> list[BudgetCrossed]:
        return self._tallies.take_news(now)

    def left(self, now: Instant, tenant: TenantId | None = None) -> tuple[BudgetLeft, ...]:
        """Where every budget stands; of a tenant, those of its path and no class's."""
        return self._tallies.left(now, tenant)

    # For a successor, and from a predecessor

    def counters(self) -> tuple[BudgetCounter, ...]:
        return self._tallies.counters()

    def restore(self, counters: Iterable[BudgetCounter]) -> None:
        self._tallies.restore(counters)


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


def _pools_for(request: Request, most: int, fleet: Fleet, rules: Rules, now: Instant) -> tuple[PoolName, ...]:
    """Of its pools those where it costs least, of those that take work.

    Where none does nobody knows which will: then all are left that are starting, or all, as far as it may go there.
    """
    if live := tuple(pool for pool in request.pools if fleet.live((pool,))):
        return cheapest(request, live, rules, now)
    pools = tuple(pool for pool in request.pools if fleet.warming((pool,))) or request.pools
    within = tuple(pool for pool in pools if cost_at(request, pool, request.answers, rules, now) <= most)
    return within or cheapest(request, pools, rules, now)
