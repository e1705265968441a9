"""Shares of limits in a cell: the scheduler, its successor and islands apply the share of their own process."""

from headgate.core.commands import End
from headgate.core.events import EndpointJoined, EndpointReady, PolicyChanged, SharesAssigned, TenantShare
from headgate.hosts.cell.leader.leader import Leader
from headgate.hosts.cell.member.member import Member
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.protocol.known_endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import Share
from headgate.hosts.cell.timing import Timing
from headgate.model.limits import Limits, LimitShare
from headgate.model.tenant import Tenant
from headgate.model.units import EndpointId, TenantId
from testing.builders import a_policy, an_endpoint, at
from testing.tenant_shares import shares_assigned
from tests.hosts.cell.builders import FIRST, Cell, a_ticket

RULES = PolicyChanged(a_policy(tenants=(Tenant(TenantId("acme"), limits=Limits(100)), "bolt")), "first")
QUARTER = SharesAssigned(250_000)


def half(until: float = 60) -> SharesAssigned:
    return shares_assigned(250_000, TenantShare(TenantId("acme"), LimitShare(500_000, 500_000), at(until)))


def a_leader(shares: SharesAssigned | None = None) -> Leader:
    endpoints = KnownEndpoints()
    endpoints.apply_event(EndpointJoined(an_endpoint(places=1_000)))
    endpoints.apply_event(EndpointReady(EndpointId("e1")))
    return Leader(FIRST, RULES, endpoints, None, at(0), timing=Timing(), shares=shares)


def a_member(name: str = "a", of: int = 1) -> Member:
    member = Member(name, 1, at(0), share=Share(0, of))
    for event in (RULES, EndpointJoined(an_endpoint(places=1_000)), EndpointReady(EndpointId("e1"))):
        member.handle(event, at(0))
    return member


def a_cell(shares: SharesAssigned | None = None) -> Cell:
    cell = Cell(a_leader(shares), a_member())
    cell.talk(at(0))
    cell.talk(at(0.5))
    return cell


def admitted(cell: Cell, now: float, count: int = 100) -> int:
    """Returns how many of `count` requests are admitted."""
    for number in range(count):
        cell.open("a", a_ticket(f"{now} {number}"), at(now))
    cell.pass_time(now, now + 0.3)
    refused = [each for each in cell.orders["a"] if isinstance(each, End)]
    cell.orders["a"].clear()
    return count - len(refused)


def test_scheduler_applies_shares_from_its_start_and_later_ones() -> None:
    assert admitted(a_cell(QUARTER), 0.6) == 25

    cell = a_cell(SharesAssigned(1_000_000))
    cell.leader.handle(half(), at(0.6))
    assert admitted(cell, 0.6) == 50


def test_scheduler_that_is_still_gathering_applies_the_latest_shares() -> None:
    cell = Cell(a_leader(QUARTER), a_member())
    cell.leader.handle(half(), at(0))
    assert cell.leader.gathering
    cell.pass_time(0, 0.6)
    assert admitted(cell, 0.7) == 50


def test_share_of_the_scheduler_expires_without_any_event() -> None:
    cell = a_cell()
    cell.leader.handle(half(until=2), at(0.6))
    cell.pass_time(0.6, 2.1)
    assert admitted(cell, 2.2) == 25


def test_island_applies_the_latest_shares_to_its_part() -> None:
    member = a_member(of=2)
    member.handle(half(), at(0.1))
    for moment in (0.5, 1.0, 1.5):
        member.tick(at(moment))
    assert member.mode.value == "island"
    told = [order for number in range(50) for order in member.open(a_ticket(f"r{number}"), at(2))]
    # Half of the cell's limit of 100, and half of that.
    assert 50 - len([each for each in told if isinstance(each, End)]) == 25

    member.handle(QUARTER, at(62))
    told = [order for number in range(50) for order in member.open(a_ticket(f"s{number}"), at(62))]
    assert 50 - len([each for each in told if isinstance(each, End)]) == 12


def test_process_that_becomes_the_scheduler_uses_its_own_shares() -> None:
    node = Node("a", 1, at(0), lambda: "a/1", candidate=True, serves=True)
    node.handle(half(), at(0))
    assert node.member.rules.reports() == [half()]
