"""Every request in a cell counts once towards its budget, even if the scheduler or a member fails."""

from dataclasses import replace

import pytest

from headgate.core.commands import End
from headgate.core.events import BudgetSpent, BudgetsSynced, EndpointJoined, EndpointReady, PolicyChanged
from headgate.hosts.cell.leader.leader import Leader
from headgate.hosts.cell.member.commands import BillsReceived
from headgate.hosts.cell.member.member import Member, MemberEvent
from headgate.hosts.cell.protocol.known_endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import Epoch, Share, Snapshot
from headgate.hosts.cell.protocol.shares import remaining_policy
from headgate.hosts.cell.protocol.views import MemberMode, MemberPresence
from headgate.hosts.cell.timing import Timing
from headgate.model.money import (
    NANO_USD_PER_USD,
    PAYER_BY_CAUSE,
    Bill,
    BillCause,
    Budget,
    NanoUsd,
    Payer,
    Period,
    Price,
)
from headgate.model.outcome import Outcome
from headgate.model.tenant import Tenant
from headgate.model.units import EndpointId, Instant, TenantId
from headgate.model.usage import Usage, UsageSource
from testing.builders import (
    a_policy,
    a_pool,
    aborted,
    an_endpoint,
    at,
    client_disconnected,
    completed,
    failed,
    first_token,
)
from tests.hosts.cell.builders import FIRST, SECOND_EPOCH, Cell, a_ticket

USD = NANO_USD_PER_USD
PRICE = Price(input_per_1m_tokens=NanoUsd(1_000_000 * USD), output_per_1m_tokens=NanoUsd(2_000_000 * USD))
DAILY = Budget(Period.DAY, NanoUsd(100_000 * USD))
POLICY = a_policy(
    tenants=(Tenant(TenantId("acme"), budgets=(DAILY,)), "bolt"), pools=(replace(a_pool(), prices=(PRICE,)),)
)
RULES = PolicyChanged(POLICY, "first")


def it_is(spent_usd: int | None = None) -> BudgetsSynced:
    spent = () if spent_usd is None else (BudgetSpent("tenant:acme", Period.DAY, NanoUsd(spent_usd * USD)),)
    return BudgetsSynced(at(-3_600), at(82_800), at(-3_600), at(2_000_000), spent)


def a_member(name: str, rank: int, of: int) -> Member:
    member = Member(name, 1, at(0), share=Share(rank, of))
    for event in (RULES, EndpointJoined(an_endpoint(places=16)), EndpointReady(EndpointId("e1")), it_is()):
        member.handle(event, at(0))
    return member


def a_leader(epoch: Epoch, now: Instant, snapshot: Snapshot | None = None, told: BudgetsSynced | None = None) -> Leader:
    endpoints = KnownEndpoints()
    endpoints.apply_event(EndpointJoined(an_endpoint(places=16)))
    endpoints.apply_event(EndpointReady(EndpointId("e1")))
    return Leader(epoch, RULES, endpoints, snapshot, now, timing=Timing(), budgets=told or it_is())


def a_cell(*names: str) -> Cell:
    members = [a_member(name, rank, len(names)) for rank, name in enumerate(names)]
    cell = Cell(a_leader(FIRST, at(0)), *members)
    cell.talk(at(0))
    cell.talk(at(0.5))
    return cell


def stands(leader: Leader, now: float) -> tuple[int, int]:
    [left] = leader.budgets_left(at(now))
    return left.spent, left.reserved


def paid(bills: tuple[Bill, ...]) -> int:
    return sum(
        each.input_nano_usd + each.output_nano_usd + each.overhead_nano_usd
        for each in bills
        if PAYER_BY_CAUSE[each.cause] is Payer.TENANT
    )


def billed(cell: Cell) -> int:
    """Returns the total cost in the bills that members have received."""
    orders = [order for told in cell.orders.values() for order in told if isinstance(order, BillsReceived | End)]
    return sum(paid(order.bills) for order in orders)


STORY = (
    lambda cell: [cell.open(name, a_ticket(request), at(1)) for name, request in zip("abab", "rstu", strict=True)],
    lambda cell: cell.members["a"].handle(completed("r", tokens=7), at(2)),
    lambda cell: cell.members["b"].handle(first_token("s"), at(3)),
    lambda cell: cell.members["b"].handle(client_disconnected("s"), at(4)),
    lambda cell: cell.members["b"].handle(aborted("s"), at(5)),
    lambda cell: cell.members["a"].handle(completed("t", tokens=3), at(6)),
)


@pytest.mark.parametrize("told_at", range(len(STORY) + 1))
def test_successor_restores_spending_from_any_snapshot(told_at: int) -> None:
    cell = a_cell("a", "b")
    snapshot = cell.leader.final_snapshot(at(0.5))
    for step, happens in enumerate(STORY):
        cell.pass_time(step + 0.6, step + 1)
        happens(cell)
        cell.pass_time(step + 1, step + 1.5)
        if step + 1 == told_at:
            snapshot = cell.leader.final_snapshot(at(step + 1.5))
    before = stands(cell.leader, 6.5)
    assert before[0] == billed(cell) > 0
    assert before[1] > 0, "one request is still in flight"

    cell.leader = a_leader(SECOND_EPOCH, at(6.6), snapshot)
    cell.pass_time(6.6, 8)

    assert not cell.leader.gathering
    spent, reserved = stands(cell.leader, 8)
    assert spent == before[0]
    assert reserved > 0, "the amount may differ because prompt predictions have changed"


def test_spending_in_both_the_ledger_and_a_report_is_counted_once() -> None:
    cell = a_cell("a")
    snapshot = cell.leader.final_snapshot(at(0.5))
    cell.open("a", a_ticket("r"), at(0.6))
    cell.pass_time(0.6, 1.5)
    cell.members["a"].handle(completed("r", tokens=7), at(1.5))
    cell.pass_time(1.5, 2)
    assert stands(cell.leader, 2) == (15 * USD, 0)

    cell.leader = a_leader(SECOND_EPOCH, at(2.1), snapshot, told=it_is(15))
    cell.pass_time(2.1, 4)
    assert stands(cell.leader, 4) == (15 * USD, 0)
    cell.leader.handle(it_is(21), at(4))
    assert stands(cell.leader, 4) == (21 * USD, 0)


def tell(cell: Cell, name: str, event: MemberEvent, now: float) -> None:
    cell.orders[name] += cell.members[name].handle(event, at(now))


def test_island_spending_is_counted_once_when_the_island_returns() -> None:
    for away_until, told in ((4, None), (20, it_is(15)), (20, None)):
        cell = a_cell("a", "b")
        cell.open("a", a_ticket("r"), at(0.6))
        cell.pass_time(0.6, 1.5)
        cell.heard["a"] = False
        cell.pass_time(1.6, 4)
        assert cell.members["a"].mode is MemberMode.ISLAND
        tell(cell, "a", completed("r", tokens=7), 4.1)
        cell.pass_time(4.2, away_until)
        if told is not None:
            cell.leader.handle(told, at(away_until))
        assert stands(cell.leader, away_until)[0] == (0 if told is None else 15 * USD)

        cell.heard["a"] = True
        cell.pass_time(away_until + 0.2, away_until + 2)
        assert cell.members["a"].mode is MemberMode.FOLLOWING
        assert stands(cell.leader, away_until + 2) == (15 * USD, 0) == (billed(cell), 0)


def test_request_ending_while_its_member_is_absent_is_charged_its_computed_cost() -> None:
    cell = a_cell("a")
    cell.open("a", a_ticket("r"), at(0.6))
    cell.pass_time(0.6, 1.5)
    for moment in (1.6, 1.8, 2.0, 2.2, 2.4):
        cell.members["a"].outgoing(at(moment))
        cell.leader.tick(at(moment))
        cell.leader.outgoing(at(moment))
    assert cell.leader.presences() == {"a": MemberPresence.ABSENT}
    assert cell.members["a"].mode is MemberMode.FOLLOWING
    tell(cell, "a", completed("r", tokens=7), 2.41)
    cell.pass_time(2.42, 6)

    assert stands(cell.leader, 6) == (15 * USD, 0)
    assert billed(cell) == 0, "the scheduler has ended the request without a bill"


def test_late_report_does_not_add_to_spending_from_the_ledger() -> None:
    cell = a_cell("a", "b")
    snapshot = cell.leader.final_snapshot(at(0.5))
    cell.open("b", a_ticket("r"), at(1))
    cell.pass_time(0.6, 1.5)
    tell(cell, "b", completed("r", tokens=7), 1.5)
    cell.pass_time(1.5, 2)
    cell.leader = a_leader(SECOND_EPOCH, at(2.1), snapshot, told=it_is(15))
    cell.heard["b"] = False
    cell.pass_time(2.1, 2.8)
    assert not cell.leader.gathering
    cell.heard["b"] = True
    cell.pass_time(2.9, 5)

    assert stands(cell.leader, 5) == (15 * USD, 0)


def test_successor_counts_a_cancelled_request_while_its_attempt_is_still_running() -> None:
    cell = a_cell("a")
    snapshot = cell.leader.final_snapshot(at(0.5))
    cell.open("a", a_ticket("r"), at(0.6))
    cell.pass_time(0.6, 1.5)
    tell(cell, "a", first_token("r"), 1.5)
    cell.pass_time(1.5, 2)
    tell(cell, "a", client_disconnected("r"), 2)
    cell.pass_time(2, 2.5)
    assert stands(cell.leader, 2.5)[0] == billed(cell) > 0

    for number, began in ((3, 2.6), (4, 5)):
        cell.leader = a_leader(Epoch(number, f"e{number}"), at(began), snapshot)
        cell.pass_time(began, began + 1.5)
        assert stands(cell.leader, began + 1.5) == (billed(cell), 0)
        snapshot = cell.leader.final_snapshot(at(began + 1.5))
    tell(cell, "a", aborted("r"), 7)
    cell.pass_time(7, 8)
    cell.leader = a_leader(Epoch(5, "e5"), at(8.1), snapshot)
    cell.pass_time(8.1, 10)
    assert stands(cell.leader, 10) == (billed(cell), 0)


def test_tenant_does_not_pay_for_a_failed_attempt_if_the_bill_is_lost() -> None:
    cell = a_cell("a")
    snapshot = cell.leader.final_snapshot(at(0.5))
    cell.open("a", a_ticket("r"), at(0.6))
    cell.pass_time(0.6, 1.5)
    tell(cell, "a", first_token("r"), 1.5)
    cell.pass_time(1.5, 2)
    cell.heard["a"] = False
    tell(cell, "a", replace(failed("r"), usage=Usage(10, 7, 0, UsageSource.ESTIMATED)), 2)
    cell.leader = a_leader(SECOND_EPOCH, at(2.1), snapshot)
    cell.heard["a"] = True
    cell.pass_time(2.1, 4)

    assert stands(cell.leader, 4) == (0, 0)


@pytest.mark.parametrize(
    ("events", "causes"),
    [
        ((completed("r", tokens=7),), [BillCause.ANSWER]),
        ((client_disconnected("r"), aborted("r")), [BillCause.CLIENT_DISCONNECTED]),
        ((client_disconnected("r"),), [BillCause.CLIENT_DISCONNECTED]),
        ((failed("r"),), []),
    ],
)
def test_request_that_ended_before_a_report_is_billed_normally(
    events: tuple[MemberEvent, ...], causes: list[BillCause]
) -> None:
    cell = a_cell("a")
    cell.open("a", a_ticket("r"), at(0.6))
    cell.pass_time(0.6, 1.5)
    tell(cell, "a", first_token("r"), 1.5)
    cell.pass_time(1.5, 2)
    member = cell.members["a"]
    for event in events:
        tell(cell, "a", event, 2)
    # The messages about the request are lost when the session is lost.
    member._authority.restart_session(at(2))
    cell.pass_time(2, 3)
    tell(cell, "a", aborted("r"), 3)
    cell.pass_time(3, 4)

    told = [order for order in cell.orders["a"] if isinstance(order, BillsReceived)]
    assert [bill.cause for order in told for bill in order.bills] == causes
    assert stands(cell.leader, 4) == (billed(cell), 0)
    snapshot = cell.leader.final_snapshot(at(4))
    cell.leader = a_leader(SECOND_EPOCH, at(4.1), snapshot)
    cell.pass_time(4.1, 6)
    assert stands(cell.leader, 6) == (billed(cell), 0)


def test_island_spends_its_share_of_the_remaining_budget() -> None:
    member = a_member("a", 0, 4)
    member.handle(it_is(100_000 - 400), at(0))
    orders = member.tick(at(60))
    assert member.island_share == Share(0, 4)

    asked = [replace(a_ticket(f"r{number}", prompt_bytes=40), output_tokens_max=20) for number in range(3)]
    orders = [order for ticket in asked for order in member.open(ticket, at(61))]
    assert [each.outcome for each in orders if isinstance(each, End)] == [Outcome.BUDGET_EXCEEDED]
    member.handle(it_is(100_000), at(62))
    ended = [
        order for order in member.handle(completed("r0", tokens=2), at(63)) if isinstance(order, BillsReceived | End)
    ]
    assert sum(paid(each.bills) for each in ended) == 5 * USD


def test_scheduler_reserves_budget_shares_for_absent_members() -> None:
    rest = remaining_policy(POLICY, taken=1, of=4)
    assert [each.share for each in rest.tenants[0].budgets] == [(3, 4)]
    with_class = replace(POLICY, classes=(replace(POLICY.classes[0], budgets=(DAILY,)), *POLICY.classes[1:]))
    assert [each.share for each in remaining_policy(with_class, taken=4, of=4).classes[0].budgets] == [(0, 4)]
    assert remaining_policy(with_class, taken=0, of=4) == with_class
