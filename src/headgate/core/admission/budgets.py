"""Budget enforcement: reserves the maximum cost of each admitted request and settles the actual cost.

A tenant `acme/search/nightly` spends from the budgets of `acme`, `acme/search` and `acme/search/nightly`, if the policy
defines them, and from the budgets of the request's class. Theory of operation:

- *Reserve.* An admitted request reserves its maximum cost (`cost_estimate`) on every budget that applies to it. A
  request is rejected if its maximum cost plus the reserved and spent amounts exceed a hard budget. Concurrent requests
  therefore cannot jointly exceed a budget.
- *Settle.* When a request ends, its reservation is released, and the part of its bills that the tenant pays is spent.
  If a bill exceeds its reservation, the budget is overdrawn by the difference.
- *Periods* come from the event `BudgetsSynced`, because the core has no calendar. A new period starts with nothing
  spent; reservations stay. The event also carries the amounts in the ledger. The ledger lags behind, but it includes
  spending by other processes, so the larger of the two amounts applies. A bill that is reported late and is already in
  the ledger is therefore not counted twice.

A soft budget never rejects requests. Once it is exhausted, its requests are served at the highest degradation level
until the period ends or the budget is raised.

A scheduler that makes decisions on its own for part of the cell (`policy_share`) may spend its share of the amount that
was left when it started. During that time it ignores ledger updates, which would count other schedulers' spending
against its own share.

Known limitations: a successor does not receive the cost of each business unit and starts counting from zero. Nor does
it receive the ledger amounts. Until it has read the ledger, its totals may be missing requests that ended recently.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from headgate.core.admission.budget_tallies import BudgetTallies, BudgetTally
from headgate.core.admission.business_units import BusinessUnit, BusinessUnits, unit_name
from headgate.core.admission.cost_estimate import (
    cheapest_pools,
    cost_at,
    cost_of_usage,
    max_cost,
    max_output_tokens,
    output_tokens_within,
)
from headgate.core.admission.limits import QuotaShortage
from headgate.core.admission.retry_after import RETRY_AFTER_EXACT_MAX
from headgate.core.commands import BudgetCrossed
from headgate.core.counters import BudgetCounter
from headgate.core.events import AttemptReported, BudgetsSynced, RequestSettled
from headgate.core.request_state import Request
from headgate.core.routing.fleet import FleetState
from headgate.core.rules import Rules
from headgate.model.limits import WHOLE_PPM, LimitShare
from headgate.model.money import NANO_USD_PER_USD, PAYER_BY_CAUSE, Bill, Budget, BudgetStatus, NanoUsd, Payer, Period
from headgate.model.outcome import Outcome
from headgate.model.policy import OptimizationGoal
from headgate.model.ticket import APIS_WITHOUT_OUTPUT, Ticket
from headgate.model.units import MINUTE, ClassName, Duration, Instant, PoolName, RequestId, TenantId
from headgate.model.usage import Usage

_NOTHING: Final = NanoUsd(0)
_TENANT: Final = Payer.TENANT


class _Claim:
    """Reservation of one request."""

    __slots__ = ("amount", "service_class", "tallies", "tenant", "unit")

    def __init__(self, tenant: TenantId, service_class: ClassName, amount: NanoUsd, unit: BusinessUnit | None) -> None:
        self.tenant = tenant
        self.service_class = service_class
        self.amount = amount
        self.unit = unit
        self.tallies: tuple[BudgetTally, ...] = ()


class Budgets:
    __slots__ = (
        "_rules",
        "_tallies",
        "_units",
        "_units_matter",
        "claims",
        "cost_capped",
        "crossings",
        "enabled",
    )

    def __init__(self, rules: Rules) -> None:
        self._tallies = BudgetTallies()
        self.crossings = self._tallies.crossings
        """Crossed budget thresholds that have not been reported yet."""
        self.claims: dict[RequestId, _Claim] = {}
        """Reservations of open requests. Empty if nothing has a price."""
        self._units = BusinessUnits()
        self._apply_rules(rules)

    # Rules

    def _apply_rules(self, rules: Rules) -> None:
        policy = rules.policy
        self._rules = rules
        # Whether anything has a price or a budget.
        self.enabled = any(each.prices for each in policy.pools) or len(self._tallies) > 0
        costly = [each for each in policy.classes if each.optimize_for is OptimizationGoal.COST]
        self._units_matter = policy.unit_key is not None and any(each.cost_per_unit_max is not None for each in costly)
        # Classes with a cost limit.
        self.cost_capped = {
            each.name: each
            for each in costly
            if each.cost_per_request_max is not None or each.cost_per_unit_max is not None
        }

    def change_rules(self, rules: Rules, *, only_tenants: bool = False) -> None:
        """Applies the budgets of a new policy. Budgets that remain keep their spent and reserved amounts.

        With `only_tenants`, the policy differs from the previous one only in its tenants.
        """
        changed = self._tallies.change_policy(rules.policy, only_tenants=only_tenants)
        self._apply_rules(rules)
        if changed:
            for claim in self.claims.values():
                self._detach(claim)
                self._attach(claim)

    def use_shares(self, share_of: Callable[[TenantId], LimitShare]) -> None:
        """Divides the budgets of tenants by this cell's share. Budgets of classes are not divided."""
        self._tallies.share_of = share_of

    def change_shares(self, tenants: Iterable[TenantId]) -> None:
        """Applies the shares of these tenants, which may have changed."""
        self._tallies.change_shares(tenants)

    # Arrival

    def degradation_level(self, request: Request) -> int:
        """Returns the degradation level that exhausted soft budgets impose on a request."""
        if not self._tallies.soft:
            return 0
        touched = self._tallies.tallies_for(request.ticket.tenant, request.service_class.name)
        return self._rules.policy.degradation.level_max if any(each.over_soft() for each in touched) else 0

    def apply_cost_cap(self, request: Request, fleet: FleetState, now: Instant) -> bool:
        """Restricts a request's pools and output length to its class's cost limit. Returns whether anything changed."""
        most = self._cost_limit(request)
        if most is None:
            return False
        pools = _pools_for(request, most, fleet, self._rules, now)
        changed, request.pools = pools != request.pools, pools
        if request.ticket.api in APIS_WITHOUT_OUTPUT:
            return changed
        tokens, caps = output_tokens_within(request, most, self._rules, now), request.service_class.caps
        if tokens is None or (caps.output_tokens is not None and caps.output_tokens <= tokens):
            return changed
        # Engines reject a limit of zero tokens. A request that cannot afford one token is rejected by `shortage`.
        request.service_class = replace(request.service_class, caps=replace(caps, output_tokens=max(1, tokens)))
        return True

    def is_cost_capped(self, request: Request) -> bool:
        """Whether the request's class has a cost limit. A cost limit can exclude pools."""
        return request.service_class.name in self.cost_capped

    def shortage(self, request: Request, now: Instant) -> QuotaShortage | None:
        """Returns the budget or cost limit that a request exceeds. Stores its maximum cost in `request.reserved`.

        Call it only if budgets are `enabled`.
        """
        request.reserved = max_cost(request, self._rules, now)
        if (most := self._cost_limit(request)) is not None and request.reserved > most:
            return self._cost_cap_shortage(request, most, now)
        for tally in self._tallies.tallies_for(request.ticket.tenant, request.service_class.name):
            if (budget := tally.exceeded_budget(request.reserved)) is not None:
                return self._budget_shortage(tally, budget, request.reserved, now)
        return None

    def cost_limit_shortage(self, request: Request, pool: PoolName, now: Instant) -> str:
        """Returns by how much this pool exceeds the cost limit of the request's class. Empty if it does not."""
        if not self.cost_capped or (limit := self._cost_limit(request)) is None:
            return ""
        if (most := cost_at(request, pool, max_output_tokens(request), self._rules, now)) <= limit:
            return ""
        allowed = f'class "{request.service_class.name}" allows at most {format_usd(limit)}'
        return f"the request may cost up to {format_usd(most)} there, but {allowed}"

    def has_budget(self, request: Request) -> bool:
        """Returns whether any budget applies to the request."""
        return bool(self._tallies.tallies_for(request.ticket.tenant, request.service_class.name))

    def budget_shortage(self, request: Request, now: Instant) -> str:
        """Returns which budget does not cover the request in addition to what it has reserved. Empty if all do."""
        most = max_cost(request, self._rules, now)
        claim = self.claims.get(request.ticket.request_id)
        more = NanoUsd(most - (0 if claim is None else claim.amount))
        for tally in self._tallies.tallies_for(request.ticket.tenant, request.service_class.name):
            if more > 0 and (budget := tally.exceeded_budget(more)) is not None:
                return self._budget_shortage(tally, budget, most, now).reason
        return ""

    def _cost_limit(self, request: Request) -> int | None:
        """Returns the cost limit of the request's class in nano-dollars, or None if the class has no limit."""
        declared = self.cost_capped.get(request.service_class.name)
        if declared is None:
            return None
        limits = [] if declared.cost_per_request_max is None else [int(declared.cost_per_request_max)]
        if declared.cost_per_unit_max is not None and (unit := self._unit(request.ticket)) is not None:
            claim = self.claims.get(request.ticket.request_id)
            own = 0 if claim is None else claim.amount
            limits.append(max(0, declared.cost_per_unit_max - unit.spent - unit.reserved + own))
        return min(limits, default=None)

    def _cost_cap_shortage(self, request: Request, cost_limit: int, now: Instant) -> QuotaShortage:
        declared = self.cost_capped[request.service_class.name]
        wait: Duration | None = RETRY_AFTER_EXACT_MAX
        limit = f'class "{declared.name}" allows at most {format_usd(cost_limit)} per request'
        if declared.cost_per_request_max is None or cost_limit < declared.cost_per_request_max:
            unit, wait = unit_name(request.ticket, self._rules), self._tallies.reset_ns(Period.DAY, now)
            key, left = self._rules.policy.unit_key, format_usd(cost_limit)
            limit = f'{key} "{unit}" has {left} left today in class "{declared.name}"'
        reason = f"the prompt and one output token cost up to {format_usd(request.reserved)}, but {limit}"
        # Waiting does not bring the prompt within the per-request limit, but this outcome requires a Retry-After.
        return QuotaShortage(Outcome.BUDGET_EXCEEDED, f"{reason}; shorten the prompt or use another class", wait)

    def _budget_shortage(self, tally: BudgetTally, budget: Budget, amount: NanoUsd, now: Instant) -> QuotaShortage:
        wait, kind = self._tallies.reset_ns(tally.period, now), tally.scope.partition(":")
        reason = (
            f'{kind[0]} "{kind[2]}" has spent {format_usd(tally.spent)} and reserved {format_usd(tally.reserved)} '
            f"of its budget of {format_usd(budget.limit)} per {tally.period}, "
            f"and this request may cost up to {format_usd(amount)}"
        )
        if tally.share_base is not None:
            allowed = format_usd(max(0, tally.allowed(budget) - tally.share_base))
            reason += f"; while other gateways are unreachable, this gateway may spend {allowed} of the remainder"
        elif tally.share_ppm != WHOLE_PPM:
            allowed = format_usd(max(0, tally.allowed(budget) - tally.spent))
            reason += f"; this cell may spend {allowed} of the remainder"
        until = f"until the {tally.period} ends" + ("" if wait is None else f" in {_format_duration(wait)}")
        return QuotaShortage(Outcome.BUDGET_EXCEEDED, f"{reason}; raise the budget or wait {until}", wait)

    def reserve(self, request: Request) -> None:
        """Reserves the maximum cost of an admitted request."""
        if not self.enabled:
            return
        unit = self._unit(request.ticket)
        if unit is not None:
            unit.reserved += request.reserved
        claim = _Claim(request.ticket.tenant, request.service_class.name, request.reserved, unit)
        self.claims[request.ticket.request_id] = claim
        self._attach(claim)

    def adopt(self, request: Request, now: Instant) -> None:
        """Reserves the cost of a request that another scheduler admitted, even if its budgets are exhausted."""
        request.reserved = max_cost(request, self._rules, now)
        self.reserve(request)

    def update_reservation(self, request: Request, now: Instant) -> None:
        """Updates the reservation of a request whose class or pools have changed."""
        if (claim := self.claims.pop(request.ticket.request_id, None)) is not None:
            self._release(claim)
            self.adopt(request, now)

    def _release(self, claim: _Claim) -> None:
        if claim.unit is not None:
            claim.unit.reserved -= claim.amount
        self._detach(claim)

    def _detach(self, claim: _Claim) -> None:
        for tally in claim.tallies:
            tally.reserved = NanoUsd(tally.reserved - claim.amount)

    def _attach(self, claim: _Claim) -> None:
        claim.tallies = self._tallies.tallies_for(claim.tenant, claim.service_class)
        for tally in claim.tallies:
            tally.reserved = NanoUsd(tally.reserved + claim.amount)

    def _unit(self, ticket: Ticket) -> BusinessUnit | None:
        """Returns the request's business unit, or None if it has none or no class has a cost limit per unit."""
        name = unit_name(ticket, self._rules) if self._units_matter else None
        return None if name is None else self._units.get(ticket.tenant, name)

    # Settlement

    def settle(self, request: Request, bills: Sequence[Bill]) -> NanoUsd:
        """Releases the reservation of a finished request, spends the amount that its tenant pays and returns it."""
        cost = paid_by_tenant(bills)
        claim = self.claims.pop(request.ticket.request_id, None) if self.claims else None
        if claim is None:
            # No pool had a price when the request was admitted.
            if cost:
                self._tallies.spend(self._tallies.tallies_for(request.ticket.tenant, request.service_class.name), cost)
            return _NOTHING
        self._release(claim)
        if claim.unit is not None:
            claim.unit.spent += cost
        self._tallies.spend(claim.tallies, cost)
        return claim.amount

    def backfill_settled(self, report: RequestSettled | AttemptReported, usage: Usage, now: Instant) -> None:
        """Spends the cost of a request that ended under another scheduler and is missing from the snapshot."""
        service_class = ClassName("") if report.service_class is None else report.service_class
        tallies, cost = self._tallies.tallies_for(report.ticket.tenant, service_class), report.cost
        if cost is not None:
            # The ledger contains the bill too, so budgets with a known ledger amount already include it.
            self._tallies.spend((each for each in tallies if each.ledger_spent is None), cost)
        elif report.pool is not None:
            self._tallies.spend(
                tallies, cost_of_usage(usage, report.pool, self._rules, now, prompts=report.ticket.prompts)
            )

    def sync(self, event: BudgetsSynced) -> None:
        """Applies the current periods and their ledger amounts."""
        if self._tallies.sync(event):
            self._units.begin_day()

    # Reporting

    def pop_crossings(self, now: Instant) -> list[BudgetCrossed]:
        return self._tallies.pop_crossings(now)

    def left(self, now: Instant, tenant: TenantId | None = None) -> tuple[BudgetStatus, ...]:
        """Returns the state of all budgets, or of those on one tenant's path (excluding class budgets)."""
        return self._tallies.left(now, tenant)

    # Handover between schedulers

    def counters(self) -> tuple[BudgetCounter, ...]:
        return self._tallies.counters()

    def restore(self, counters: Iterable[BudgetCounter]) -> None:
        self._tallies.restore(counters)


def paid_by_tenant(bills: Iterable[Bill]) -> NanoUsd:
    whole = 0
    for bill in bills:
        amount = bill.nano_usd
        if amount and PAYER_BY_CAUSE[bill.cause] is _TENANT:
            whole += amount
    return NanoUsd(whole)


def format_usd(amount: int) -> str:
    """Formats nano-dollars with two decimals, or with three significant digits for amounts below one dollar."""
    value = amount / NANO_USD_PER_USD
    return f"${value:,.2f}" if value >= 1 or not amount else f"${value:.3g}"


def _format_duration(length: Duration) -> str:
    minutes = -(-length // MINUTE)
    hours, rest = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {rest} min" if hours else f"{rest} min"


def _pools_for(
    request: Request, cost_limit: int, fleet: FleetState, rules: Rules, now: Instant
) -> tuple[PoolName, ...]:
    """Returns the cheapest of the request's live pools.

    If no pool is live, returns the starting pools (or all pools if none is starting) that are within the cost limit, or
    the cheapest of them if none is within the limit.
    """
    if live := tuple(pool for pool in request.pools if fleet.live_count((pool,))):
        return cheapest_pools(request, live, rules, now)
    pools = tuple(pool for pool in request.pools if fleet.is_warming((pool,))) or request.pools
    within = tuple(pool for pool in pools if cost_at(request, pool, request.answers, rules, now) <= cost_limit)
    return within or cheapest_pools(request, pools, rules, now)
