"""Tests for the rate limit on rejected requests in a cell gateway."""

from headgate.core.events import PolicyChanged, RequestRejected
from headgate.hosts.cell.host import CellHost
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.rejected_requests import RejectedRequests
from headgate.hosts.local.clock import SystemClock
from headgate.model.limits import Limits
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant
from headgate.model.units import SECOND, Duration, Instant, TenantId
from tests.hosts.cell.fake_store import FakeServer, FakeStore

T, FREE = TenantId("t"), TenantId("free")
POLICY = Policy(tenants=(Tenant(T, limits=Limits(requests_per_minute=2)), Tenant(FREE)))


def test_rejected_requests_count_towards_the_tenants_rate_limit() -> None:
    rejected = RejectedRequests()
    rejected.change_rules(POLICY, Instant(0))
    rejected.count(T, Instant(0))
    assert rejected.limit_reached(T, Instant(0)) is None
    for _ in range(9):
        rejected.count(T, Instant(0))
        rejected.count(FREE, Instant(0))

    short = rejected.limit_reached(T, Instant(0))
    assert short is not None
    assert (short.outcome, short.wait_ns) == (Outcome.RATE_LIMITED, Duration(30 * SECOND))
    assert rejected.limit_reached(T, Instant(30 * SECOND)) is None
    assert rejected.limit_reached(FREE, Instant(0)) is None


async def test_cell_gateway_counts_the_requests_it_rejects() -> None:
    clock = SystemClock()
    host = CellHost(
        Node("a", 1, clock.now(), lambda: "id"),
        FakeStore(FakeServer(), "a"),
        clock,
        (),
        _fail,
        on_engine_watch=lambda _: None,
        on_policy_agreed=lambda _: None,
    )
    try:
        host.report(PolicyChanged(POLICY, "1"))
        assert host.limit_reached(T) is None
        for _ in range(2):
            host.report(RequestRejected(T))

        assert host.limit_reached(T) is not None
        assert host.limit_reached(FREE) is None
    finally:
        host.stop()


def _fail(mistake: BaseException) -> None:
    raise mistake
