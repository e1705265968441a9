"""Property tests for budgets.

A budget contains the spent and reserved amounts, and is exceeded by no more than the amount by which bills exceed their
reservations.
"""

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.commands import BudgetCrossed, Command, Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, BudgetsSynced, Event, RequestArrived
from headgate.core.scheduler import Scheduler
from headgate.model.money import NANO_USD_PER_USD, PAYER_BY_CAUSE, Bill, Budget, NanoUsd, Payer, Period, Price
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant
from headgate.model.units import RequestId, TenantId
from headgate.model.usage import Usage, UsageSource
from testing.builders import a_policy, a_pool, a_scheduler, an_endpoint, arrived, at, client_disconnected, failed
from testing.builders import policy_changed as changed

USD = NANO_USD_PER_USD
PRICES = (
    Price(input_per_1m_tokens=NanoUsd(1_000_000 * USD), output_per_1m_tokens=NanoUsd(2_000_000 * USD)),
    Price(per_hour=NanoUsd(3_600 * USD)),
)
TENANTS = ("acme", "acme/x", "acme/x/k", "bolt")

Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("ask", "ask", "ask", "answer", "answer", "fail", "leave", "day", "policy")),
        st.integers(0, 30),
        st.integers(0, 40),
    ),
    max_size=60,
)


def a_spending_policy(limit: int, price: Price) -> Policy:
    day, month = Budget(Period.DAY, NanoUsd(limit * USD)), Budget(Period.MONTH, NanoUsd(3 * limit * USD))
    tenants = (
        Tenant(TenantId("acme"), budgets=(day, month)),
        "acme/x",
        Tenant(TenantId("acme/x/k"), budgets=(replace(day, limit=NanoUsd(limit * USD // 2)),)),
        "bolt",
    )
    return a_policy(tenants=tenants, pools=(replace(a_pool(), prices=(price,)),))


def paid(bills: tuple[Bill, ...]) -> int:
    return sum(
        each.input_nano_usd + each.output_nano_usd + each.overhead_nano_usd
        for each in bills
        if PAYER_BY_CAUSE[each.cause] is Payer.TENANT
    )


@dataclass
class Books:
    """Reference ledger that sees only events and commands."""

    price: Price
    scheduler: Scheduler
    limit: int = 200
    now: int = 0
    day: int = 0
    number: int = 0
    open: dict[str, str] = field(default_factory=dict)
    """Tenant of each admitted request."""
    attempts: dict[str, int] = field(default_factory=dict)
    """Last dispatched attempt for each request. A request has none while its endpoint is ejected."""
    spent: dict[tuple[str, Period], int] = field(default_factory=dict)
    beyond: int = 0
    """Sum of the amounts by which bills exceeded their reservations."""
    told: list[tuple[str, Period, int, int, int]] = field(default_factory=list)

    def handle(self, event: Event) -> list[Command]:
        commands = self.scheduler.handle(event, at(self.now))
        for command in commands:
            match command:
                case Dispatch():
                    self.attempts[command.request_id] = command.attempt
                case End():
                    self.ended(command)
                case BudgetCrossed(budget, percent):
                    self.told.append((budget.scope, budget.period, budget.limit, percent, self.day))
                case _:
                    pass
        return commands

    def ended(self, end: End) -> None:
        tenant, cost = self.open.pop(end.request_id, None), paid(end.bills)
        if tenant is None:
            assert not end.bills
            return
        self.beyond += max(0, cost - end.reserved)
        for scope in ("acme", "acme/x/k"):
            if f"{tenant}/".startswith(f"{scope}/"):
                for period in Period:
                    self.spent[scope, period] = self.spent.get((scope, period), 0) + cost

    def step(self, kind: str, one: int, other: int) -> None:
        self.now += other % 4
        names = list(self.open)
        name = names[one % len(names)] if names else ""
        match kind:
            case "ask":
                self.ask(TENANTS[one % 4], prompt=1 + other, most=one)
            case "day":
                self.day += 1
                self.now += 86_400
                self.spent = {key: spent for key, spent in self.spent.items() if key[1] is Period.MONTH}
                day = 86_400 * self.day
                self.handle(BudgetsSynced(at(day), at(day + 86_400), at(0), at(31 * 86_400)))
            case "policy":
                self.limit = 100 + 10 * one
                self.handle(changed(a_spending_policy(self.limit, self.price), f"h{self.number}"))
            case "answer" if name in self.attempts:
                usage = Usage(1 + other, one, 0, UsageSource.ENGINE)
                request_id, attempt = RequestId(name), self.attempts[name]
                self.handle(AttemptEnded(request_id, attempt, AttemptEnding.COMPLETED, usage=usage))
            case "fail" if name in self.attempts:
                self.handle(failed(name, self.attempts[name]))
            case "leave" if name:
                self.handle(client_disconnected(name))
            case _:
                pass

    def ask(self, tenant: str, *, prompt: int, most: int) -> None:
        self.number += 1
        name = f"r{self.number}"
        ticket = replace(arrived(name, tenant, prompt_bytes=4 * prompt).ticket, output_tokens_max=most)
        self.open[name] = tenant
        before = self.beyond
        for command in self.handle(RequestArrived(ticket)):
            assert not isinstance(command, End) or command.outcome in (
                Outcome.BUDGET_EXCEEDED,
                Outcome.DEADLINE_INFEASIBLE,
            )
        assert self.beyond == before

    def check(self) -> None:
        for left in self.scheduler.budget_status(at(self.now)):
            scope = left.scope.removeprefix("tenant:")
            assert left.spent == self.spent.get((scope, left.period), 0)
            below = [each for each in self.open.values() if f"{each}/".startswith(f"{scope}/")]
            assert left.reserved >= 0
            assert below or left.reserved == 0, "reserved without an open request"


@given(STEPS, st.sampled_from(PRICES))
def test_spent_amount_equals_bills_and_all_reservations_belong_to_open_requests(
    steps: list[Step], price: Price
) -> None:
    books = Books(price, a_scheduler(an_endpoint(places=200), policy=a_spending_policy(200, price)))
    books.handle(BudgetsSynced(at(0), at(86_400), at(0), at(31 * 86_400)))
    for kind, one, other in steps:
        books.step(kind, one, other)
        books.check()
    for name in list(books.open):
        books.handle(client_disconnected(name))
    books.check()

    days = [each for each in books.told if each[1] is Period.DAY]
    months = [each[:4] for each in books.told if each[1] is Period.MONTH]
    assert len(days) == len(set(days)), "reported more than once per limit and day"
    assert len(months) == len(set(months))


@given(STEPS.map(lambda steps: [each for each in steps if each[0] not in ("policy", "day")]), st.sampled_from(PRICES))
def test_hard_budget_is_exceeded_at_most_by_bills_above_their_reservations(steps: list[Step], price: Price) -> None:
    books = Books(price, a_scheduler(an_endpoint(places=200), policy=a_spending_policy(200, price)))
    for kind, one, other in steps:
        books.step(kind, one, other)
        for left in books.scheduler.budget_status(at(books.now)):
            assert left.spent + left.reserved <= left.limit + books.beyond
