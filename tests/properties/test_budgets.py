"""Whatever comes in whatever order: does a budget have what was spent and reserved, and is it never overdrawn by more
than bills exceed their reservations?
"""

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.commands import BudgetCrossed, Command, Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, BudgetsTold, Event, RequestArrived
from headgate.core.scheduler import Scheduler
from headgate.model.money import NANO_USD_PER_USD, PAYERS, Bill, Budget, NanoUsd, Payer, Period, Price
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant
from headgate.model.units import RequestId, TenantId
from headgate.model.usage import Usage, UsageSource
from testing.builders import a_policy, a_pool, a_scheduler, an_endpoint, arrived, at, client_left, failed
from testing.builders import policy_changed as changed

USD = NANO_USD_PER_USD
PRICES = (
    Price(input_tokens=NanoUsd(1_000_000 * USD), output_tokens=NanoUsd(2_000_000 * USD)),
    Price(hour=NanoUsd(3_600 * USD)),
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
    return sum(each.input + each.output + each.overhead for each in bills if PAYERS[each.cause] is Payer.TENANT)


@dataclass
class Books:
    """What a bookkeeper would write down who sees events and commands alone."""

    price: Price
    scheduler: Scheduler
    limit: int = 200
    now: int = 0
    day: int = 0
    number: int = 0
    open: dict[str, str] = field(default_factory=dict)
    """Requests that were let in, and whose they are."""
    attempts: dict[str, int] = field(default_factory=dict)
    """The last of each that was sent anywhere: where the endpoint has been given up for a while, none is."""
    spent: dict[tuple[str, Period], int] = field(default_factory=dict)
    beyond: int = 0
    """What bills came to above their reservations, all together."""
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
                self.handle(BudgetsTold(at(day), at(day + 86_400), at(0), at(31 * 86_400)))
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
                self.handle(client_left(name))
            case _:
                pass

    def ask(self, tenant: str, *, prompt: int, most: int) -> None:
        self.number += 1
        name = f"r{self.number}"
        ticket = replace(arrived(name, tenant, prompt_bytes=4 * prompt).ticket, output_tokens_max=most)
        self.open[name] = tenant
        before = self.beyond
        for command in self.handle(RequestArrived(ticket)):
            assert not isinstance(command, End) or command.outcome in (Outcome.OVER_BUDGET, Outcome.UNREACHABLE)
        assert self.beyond == before

    def check(self) -> None:
        for left in self.scheduler.budgets_left(at(self.now)):
            scope = left.scope.removeprefix("tenant:")
            assert left.spent == self.spent.get((scope, left.period), 0)
            below = [each for each in self.open.values() if f"{each}/".startswith(f"{scope}/")]
            assert left.reserved >= 0
            assert below or left.reserved == 0, "nobody is open, so nothing is reserved"


@given(STEPS, st.sampled_from(PRICES))
def test_what_is_spent_is_what_tenants_were_billed_and_what_is_reserved_belongs_to_somebody(
    steps: list[Step], price: Price
) -> None:
    books = Books(price, a_scheduler(an_endpoint(places=200), policy=a_spending_policy(200, price)))
    books.handle(BudgetsTold(at(0), at(86_400), at(0), at(31 * 86_400)))
    for kind, one, other in steps:
        books.step(kind, one, other)
        books.check()
    for name in list(books.open):
        books.handle(client_left(name))
    books.check()

    days = [each for each in books.told if each[1] is Period.DAY]
    months = [each[:4] for each in books.told if each[1] is Period.MONTH]
    assert len(days) == len(set(days)), "once for each limit and day"
    assert len(months) == len(set(months))


@given(STEPS.map(lambda steps: [each for each in steps if each[0] not in ("policy", "day")]), st.sampled_from(PRICES))
def test_a_hard_budget_is_overdrawn_by_what_bills_exceed_their_reservations_and_no_more(
    steps: list[Step], price: Price
) -> None:
    books = Books(price, a_scheduler(an_endpoint(places=200), policy=a_spending_policy(200, price)))
    for kind, one, other in steps:
        books.step(kind, one, other)
        for left in books.scheduler.budgets_left(at(books.now)):
            assert left.spent + left.reserved <= left.limit + books.beyond
