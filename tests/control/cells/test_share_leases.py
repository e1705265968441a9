"""The share leases of a gateway process, and the demand that it reports."""

from dataclasses import dataclass, field, replace

from headgate.control.cells.messages import REVISION, AccountDemand, LeasedShare, ShareMessage
from headgate.control.cells.share_leases import ACCOUNTS_MAX, LEASE_NS_MAX, AccountDemands, ShareLeases
from headgate.core.events import SharesAssigned, TenantShare
from headgate.model.limits import Limits, LimitShare
from headgate.model.money import Budget, NanoUsd, Period
from headgate.model.overrides import Throttle
from headgate.model.tenant import Tenant, tenant_table
from headgate.model.units import SECOND, Instant, TenantId
from headgate.telemetry.tenant_activity import TenantActivity
from testing.builders import a_policy, at
from testing.executed_lines import count_executed_lines
from testing.tenant_shares import shares_assigned

FLOOR = 250_000


@dataclass
class Gateway:
    now: Instant = at(100)
    assigned: list[SharesAssigned] = field(default_factory=list[SharesAssigned])

    def __post_init__(self) -> None:
        self.leases = ShareLeases("s1", FLOOR, lambda: self.now, self.assigned.append, dict)

    def message(self, **changes: object) -> ShareMessage:
        usual = ShareMessage("", 1, 1, "s1", int(self.now), 15 * SECOND, {"acme": 500_000})
        return replace(usual, **changes)  # pyright: ignore[reportArgumentType]


def test_process_starts_with_the_floor() -> None:
    assert Gateway().assigned == [SharesAssigned(FLOOR)]


def test_share_lasts_from_the_stamp_of_the_last_report() -> None:
    gateway = Gateway()
    stamp = int(gateway.now)
    gateway.now = at(104)
    report = gateway.leases.handle(gateway.message(stamp_ns=stamp))
    assert gateway.assigned[-1] == shares_assigned(
        FLOOR, TenantShare(TenantId("acme"), LimitShare(500_000, 500_000), at(115))
    )
    assert report.shares == {"acme": LeasedShare(500_000, 11 * SECOND)}
    assert (report.session, report.stamp_ns, report.epoch, report.version) == ("s1", at(104), 1, 1)
    assert gateway.leases.status() == {
        "floor_ppm": FLOOR,
        "controller_epoch": 1,
        "leases": 1,
        "leases_end_in_s": 11.0,
    }

    gateway.now = at(115)
    assert gateway.leases.report().shares == {}
    assert gateway.leases.status()["leases_end_in_s"] is None
    assert (gateway.leases.count, gateway.leases.expired) == (0, 1)


def test_leases_are_lost_when_the_controller_no_longer_renews_them() -> None:
    gateway = Gateway()
    assert (gateway.leases.is_lost, gateway.leases.renewal_age_ns) == (False, None)

    gateway.leases.handle(gateway.message())
    gateway.now = at(110)
    assert (gateway.leases.is_lost, gateway.leases.renewal_age_ns) == (False, 10 * SECOND)
    gateway.now = at(116)
    assert (gateway.leases.is_lost, gateway.leases.renewal_age_ns) == (True, 16 * SECOND)

    # The tenant has lost its limits, but the controller still reaches the process.
    gateway.leases.handle(gateway.message(shares={}))
    assert (gateway.leases.count, gateway.leases.is_lost) == (0, False)


def test_process_that_never_had_leases_has_not_lost_them() -> None:
    gateway = Gateway()
    gateway.leases.handle(gateway.message(shares={}))
    gateway.now = at(200)
    assert not gateway.leases.is_lost


def test_outdated_messages_are_ignored() -> None:
    gateway = Gateway()
    gateway.leases.handle(gateway.message(epoch=2, version=7))
    known = len(gateway.assigned)
    for outdated in (
        gateway.message(epoch=1, version=9),
        gateway.message(epoch=2, version=6),
        gateway.message(epoch=2, version=9, session="s0"),
        gateway.message(epoch=2, version=9, stamp_ns=int(at(80))),
    ):
        report = gateway.leases.handle(outdated)
        assert (report.epoch, report.version) == (2, 7)
    assert len(gateway.assigned) == known

    report = gateway.leases.handle(gateway.message(epoch=3, session=""))
    assert (report.epoch, report.version) == (3, 0)
    assert report.shares.keys() == {"acme"}


def test_messages_with_the_same_version_complement_each_other() -> None:
    gateway = Gateway()
    gateway.leases.handle(gateway.message())
    report = gateway.leases.handle(gateway.message(shares={"bolt": 300_000}))
    assert report.shares.keys() == {"acme", "bolt"}


def test_token_share_equals_the_request_share_unless_the_message_contains_another() -> None:
    gateway = Gateway()
    shares = {"acme": 500_000, "bolt": 300_000}
    report = gateway.leases.handle(gateway.message(shares=shares, token_shares={"acme": 200_000}))
    assigned = gateway.assigned[-1].shares
    assert [each.share for each in assigned.values()] == [LimitShare(500_000, 200_000), LimitShare(300_000, 300_000)]
    assert [each.tokens for each in report.shares.values()] == [200_000, 300_000]
    assert report.revision == REVISION


def test_older_controller_does_not_raise_a_token_share_before_its_lease_expires() -> None:
    gateway = Gateway()

    def tokens_after(seconds: float, ppm: int, **token_shares: int) -> list[int]:
        gateway.now = at(100 + seconds)
        gateway.leases.handle(gateway.message(shares={"acme": ppm}, token_shares=token_shares))
        return [each.share.tokens_ppm for each in gateway.assigned[-1].shares.values()]

    assert tokens_after(0, 750_000, acme=250_000) == [250_000]
    assert tokens_after(14, 750_000) == [250_000]
    assert tokens_after(14.5, 200_000) == [200_000]
    # The lease with this token share has expired. Later leases have not.
    assert tokens_after(15, 750_000) == [750_000]

    assert tokens_after(16, 500_000, acme=100_000) == [100_000]
    assert tokens_after(17, 500_000, acme=500_000) == [500_000]
    assert tokens_after(18, 600_000) == [600_000]

    # All leases have expired.
    assert tokens_after(19, 500_000, acme=100_000) == [100_000]
    assert tokens_after(60, 500_000) == [500_000]


def test_length_of_a_lease_is_limited_and_a_stamp_from_the_future_does_not_extend_it() -> None:
    gateway = Gateway()
    report = gateway.leases.handle(gateway.message(stamp_ns=int(at(500)), lease_ns=10 * LEASE_NS_MAX))
    assert report.shares == {"acme": LeasedShare(500_000, LEASE_NS_MAX)}


def test_demand_covers_accounts_with_limits_budgets_and_throttles() -> None:
    policy = a_policy(
        tenants=(
            Tenant(TenantId("acme"), limits=Limits(concurrency=10)),
            Tenant(TenantId("acme/web"), limits=Limits(concurrency=4)),
            Tenant(TenantId("bolt/search"), budgets=(Budget(Period.DAY, NanoUsd(1)),)),
            Tenant(TenantId("cord")),
            Tenant(TenantId("dent")),
        )
    )
    policy = replace(policy, overrides=(Throttle(TenantId("dent"), Limits(1), at(0)),))

    def activity(name: str, arrived: int, queued: int, in_flight: int) -> TenantActivity:
        found = TenantActivity(name)
        found.tokens, found.open_tokens = 100 * arrived, 100 * (queued + in_flight)
        found.arrived, found.queued, found.in_flight = arrived, queued, in_flight
        return found

    seen = [
        activity("acme", 7, 1, 1),
        activity("acme/web", 5, 2, 1),
        activity("bolt/search/key", 3, 0, 0),
        activity("cord", 9, 9, 9),
    ]
    demands = AccountDemands()
    assert demands.measure(policy, seen) == {
        "acme": AccountDemand(12, 5, 750_000, 1_200, 500),
        "bolt": AccountDemand(3, 0, 0, 300),
        "dent": AccountDemand(0, 0, 0, 0),
    }
    # Accounts whose last limit is removed are no longer reported.
    fewer = replace(policy, tenants=tuple(each for each in policy.tenants if each.id != "bolt/search"), overrides=())
    assert demands.measure(fewer, seen).keys() == {"acme"}


def test_demand_is_measured_without_visiting_all_tenants() -> None:
    def lines(count: int) -> int:
        tenants = tuple(Tenant(TenantId(f"org{number:05}"), limits=Limits(10)) for number in range(count))
        policy, demands = replace(a_policy(), tenants=tenant_table(tenants)), AccountDemands()
        demands.measure(policy, ())
        return count_executed_lines(lambda: demands.measure(policy, ()), "headgate.model.persistent_map")

    assert lines(200) == lines(4_000)


def test_report_is_limited_and_starts_with_accounts_that_have_requests() -> None:
    tenants = tuple(Tenant(TenantId(f"org{number:05}"), limits=Limits(10)) for number in range(ACCOUNTS_MAX + 9))
    busy = TenantActivity(f"org{ACCOUNTS_MAX + 5:05}")
    busy.request_arrived(100)
    demand = AccountDemands().measure(replace(a_policy(), tenants=tenant_table(tenants)), [busy])
    assert len(demand) == ACCOUNTS_MAX
    assert demand[busy.name] == AccountDemand(1, 1, 0, 100, 100)
