"""When a copy of a request is sent, and what it affects."""

from dataclasses import replace

import pytest

from headgate.core.commands import Abort, Command, Dispatch, End
from headgate.core.events import CountedUpTo, RequestArrived
from headgate.core.routing.model_routes import mirror_of
from headgate.core.scheduler import Scheduler
from headgate.model.limits import Limits
from headgate.model.money import PAYER_BY_CAUSE, BillCause, Budget, NanoUsd, Payer, Period, Price
from headgate.model.outcome import Outcome
from headgate.model.overrides import PinDegradation
from headgate.model.policy import Model, Policy, Pool
from headgate.model.routes import MIRROR_TENANT, ModelRoute, RouteMirror, Sticky, mirror_id, mirrored_id
from headgate.model.tenant import Tenant
from headgate.model.ticket import Ticket
from headgate.model.units import Duration, ModelName, PoolName, RequestId, TenantId
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    aborted,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    failed,
    first_token,
    joined,
    only_end,
    policy_changed,
    readied,
)
from testing.takeover_reports import a_successor, running_report, waiting_report

STABLE, CANDIDATE = PoolName("stable"), PoolName("candidate")


def mirrored(percent: int = 10, sticky: Sticky = Sticky.REQUEST, pools: tuple[PoolName, ...] = (CANDIDATE,)) -> Policy:
    route = ModelRoute("stable", (STABLE,), mirror=RouteMirror(pools, percent * 10_000))
    return replace(
        a_policy(pools=(STABLE, CANDIDATE), models=(Model(ModelName("m"), (STABLE,), routes=(route,), sticky=sticky),)),
        tenants=(Tenant(TenantId("acme")),),
    )


def a_copy(request: str = "r", **changes: object) -> RequestArrived:
    """Returns the arrival of the copy of a request."""
    ticket = arrived(mirror_id(RequestId(request)), MIRROR_TENANT).ticket
    changes = {"requested_class": "interactive", "mirror_route": "stable", **changes}
    return RequestArrived(replace(ticket, **changes))  # type: ignore[arg-type]


def a_fleet(policy: Policy | None = None, *, places: int = 2) -> Scheduler:
    return a_scheduler(
        an_endpoint("s", pool=STABLE, places=places),
        an_endpoint("c", pool=CANDIDATE, places=places),
        policy=policy or mirrored(),
    )


def sent(commands: list[Command]) -> Dispatch:
    [found] = [each for each in commands if isinstance(each, Dispatch)]
    return found


# Selection


def copied(policy: Policy, ticket: Ticket, route: str = "stable") -> bool:
    return mirror_of(policy.models[0], ticket, route) is not None


@pytest.mark.parametrize("percent", [0, 2, 10, 100])
def test_share_of_copied_requests_follows_the_setting(percent: int) -> None:
    policy, ticket = mirrored(percent), arrived("r").ticket
    tickets = (replace(ticket, request_id=RequestId(f"req_{number}")) for number in range(100_000))
    found = sum(copied(policy, each) for each in tickets) / 1_000

    assert found == pytest.approx(percent, abs=0.5 if 0 < percent < 100 else 0)


def test_larger_share_copies_all_requests_that_were_copied_before() -> None:
    tickets = [arrived(f"r{number}").ticket for number in range(2_000)]
    before = {each.request_id for each in tickets if copied(mirrored(5), each)}
    after = {each.request_id for each in tickets if copied(mirrored(25), each)}

    assert before < after


def test_requests_with_the_same_sticky_key_are_all_copied_or_none_is() -> None:
    policy = mirrored(50, Sticky.USER)
    by_user = [
        {copied(policy, replace(arrived(f"{user}-{n}").ticket, sticky_keys=(("user", user),))) for n in range(9)}
        for user in map(str, range(20))
    ]

    assert all(len(each) == 1 for each in by_user)
    assert set.union(*by_user) == {True, False}


def test_only_requests_on_the_route_are_copied() -> None:
    assert not copied(mirrored(100), arrived("r").ticket, route="other")


def test_copy_is_named_after_its_request() -> None:
    assert mirrored_id(mirror_id(RequestId("req_1"))) == "req_1"
    assert mirrored_id(RequestId("req_1")) is None


# Sending


def test_copy_is_sent_at_once_in_its_own_class() -> None:
    scheduler = a_fleet()
    scheduler.handle(arrived("r"), at(0))
    dispatch = sent(scheduler.handle(a_copy(), at(0)))

    assert (dispatch.pool, dispatch.endpoint_id, dispatch.service_class) == ("candidate", "c", "mirror")
    assert (dispatch.route, dispatch.attempt, dispatch.waited_ns) == ("", 1, 0)


def test_copy_has_the_time_limits_and_caps_of_its_requests_class() -> None:
    policy = mirrored()
    strict = replace(
        a_class("interactive"),
        first_token_ns_max=Duration(1_000),
        idle_ns_max=Duration(2_000),
        total_ns_max=Duration(3_000),
    )
    dispatch = sent(a_fleet(replace(policy, classes=(strict, a_class("batch", band=1)))).handle(a_copy(), at(0)))

    assert (dispatch.first_token_ns_max, dispatch.idle_ns_max, dispatch.total_ns_max) == (1_000, 2_000, 3_000)
    assert dispatch.caps == strict.caps


def test_copy_is_not_sent_without_a_free_slot() -> None:
    scheduler = a_fleet(places=1)
    first, second = scheduler.handle(a_copy("a"), at(0)), only_end(scheduler.handle(a_copy("b"), at(0)))

    assert sent(first).endpoint_id == "c"
    assert (second.outcome, second.service_class) == (Outcome.QUEUE_FULL, "mirror")
    assert second.reason == "no endpoint in pool candidate has idle capacity"


def test_copy_is_not_sent_without_a_live_endpoint() -> None:
    scheduler = a_scheduler(an_endpoint("s", pool=STABLE), policy=mirrored())
    ended = only_end(scheduler.handle(a_copy(), at(0)))

    assert (ended.outcome, ended.reason) == (Outcome.NO_ENDPOINTS, "no endpoint in pool candidate is available")


def test_copy_is_not_sent_while_a_request_waits_for_the_pool() -> None:
    scheduler = a_fleet(mirrored(pools=(STABLE,)), places=1)
    commands_for(scheduler, at(0), arrived("running"), arrived("waiting"))
    ended = only_end(scheduler.handle(a_copy(), at(0)))

    assert (ended.outcome, ended.reason) == (Outcome.SHED, "requests wait for pool stable")


def test_copy_is_not_sent_to_a_degraded_pool() -> None:
    policy = replace(mirrored(pools=(STABLE,)), overrides=(PinDegradation(STABLE, 3, at(100)),))
    scheduler = a_fleet(policy)
    scheduler.handle(arrived("r"), at(0))
    scheduler.handle(arrived("r2"), at(1))
    ended = only_end(scheduler.handle(a_copy(), at(1)))

    assert (ended.outcome, ended.reason) == (Outcome.SHED, "pool stable is overloaded")


@pytest.mark.parametrize("changes", [{"mirror_route": "gone"}, {"model": "gone"}, {"requested_class": "gone"}])
def test_copy_for_a_mirror_that_no_longer_exists_ends(changes: dict[str, object]) -> None:
    assert only_end(a_fleet().handle(a_copy(**changes), at(0))).outcome is Outcome.NO_ENDPOINTS


def test_callers_cannot_use_the_class_or_the_tenant_of_copies() -> None:
    scheduler = a_fleet()
    named = RequestArrived(replace(arrived("a").ticket, requested_class="mirror"))

    assert only_end(scheduler.handle(named, at(0))).outcome is Outcome.INVALID_REQUEST
    assert only_end(scheduler.handle(arrived("b", MIRROR_TENANT), at(0))).outcome is Outcome.UNAUTHORIZED


# Stopping


def test_copy_gives_up_its_slot_when_a_request_waits_for_the_pool() -> None:
    scheduler = a_fleet(mirrored(pools=(STABLE,)), places=1)
    scheduler.handle(a_copy(), at(0))
    commands = scheduler.handle(arrived("r"), at(1))
    freed = scheduler.handle(aborted("r-mirror"), at(2))

    abort, end = commands
    assert isinstance(abort, Abort)
    assert isinstance(end, End)
    assert (end.outcome, end.reason) == (Outcome.EVICTED, "a request waits for pool stable")
    assert sent(freed).request_id == "r"


def test_all_copies_in_a_pool_end_when_a_request_waits_for_it() -> None:
    scheduler = a_fleet(mirrored(pools=(STABLE,)), places=2)
    commands_for(scheduler, at(0), a_copy("a"), a_copy("b"))

    ended = [each.request_id for each in scheduler.handle(arrived("r"), at(1)) if isinstance(each, End)]

    assert ended == ["a-mirror", "b-mirror"]


def test_copy_keeps_its_slot_while_requests_wait_for_other_pools() -> None:
    scheduler = a_fleet(places=1)
    commands_for(scheduler, at(0), arrived("running"), a_copy())

    assert scheduler.handle(arrived("waiting"), at(1)) == []
    assert only_end(scheduler.handle(completed("r-mirror"), at(2))).outcome is Outcome.COMPLETED


# Results


def test_failed_copy_is_not_retried() -> None:
    scheduler = a_scheduler(an_endpoint("c1", pool=CANDIDATE), an_endpoint("c2", pool=CANDIDATE), policy=mirrored())
    scheduler.handle(a_copy(), at(0))
    ended = only_end(scheduler.handle(failed("r-mirror"), at(1)))

    assert (ended.outcome, ended.attempts) == (Outcome.ENGINE_ERROR, 1)


def test_platform_pays_for_a_copy() -> None:
    priced = Pool(CANDIDATE, prices=(Price(output_per_1m_tokens=NanoUsd(10**12)),))
    policy = mirrored()
    policy = replace(policy, pools=(policy.pools[0], priced))
    scheduler = a_fleet(policy)
    scheduler.handle(a_copy(), at(0))
    [bill] = only_end(scheduler.handle(completed("r-mirror", tokens=20), at(1))).bills

    assert (bill.cause, bill.output_nano_usd) == (BillCause.MIRROR, 20_000_000)
    assert PAYER_BY_CAUSE[bill.cause] is Payer.PLATFORM


def test_copy_does_not_count_toward_the_callers_limits_and_budgets() -> None:
    policy = mirrored()
    tenant = Tenant(TenantId("acme"), limits=Limits(concurrency=1), budgets=(Budget(Period.DAY, NanoUsd(10**9)),))
    scheduler = a_fleet(replace(policy, tenants=(tenant,)))
    scheduler.handle(a_copy(), at(0))

    assert sent(scheduler.handle(arrived("r"), at(0))).request_id == "r"
    scheduler.handle(completed("r-mirror", tokens=20), at(1))
    assert [each.spent for each in scheduler.budget_status(at(1))] == [0]


def test_copy_is_no_duplicate_of_its_request() -> None:
    scheduler = a_fleet()
    scheduler.handle(arrived("r", key="k"), at(0))

    assert sent(scheduler.handle(a_copy(), at(0))).request_id == "r-mirror"


def test_copy_without_streaming_completes() -> None:
    scheduler = a_fleet()
    scheduler.handle(a_copy(stream=False), at(0))
    scheduler.handle(first_token("r-mirror"), at(1))

    assert only_end(scheduler.handle(completed("r-mirror"), at(2))).outcome is Outcome.COMPLETED


# Another scheduler


def test_successor_continues_a_running_copy_and_stops_it_for_a_request() -> None:
    scheduler = a_successor(policy=mirrored(pools=(STABLE,)))
    commands_for(scheduler, at(0), joined("s", pool=STABLE, places=1))
    report = running_report(
        "r-mirror", MIRROR_TENANT, "s", pool="stable", service_class="mirror", counted=CountedUpTo.SENT
    )
    ticket = replace(report.ticket, mirror_route="stable", requested_class="interactive")
    commands_for(scheduler, at(0), replace(report, ticket=ticket), readied("s"))
    commands = scheduler.handle(arrived("r"), at(1))

    abort, end = commands
    assert isinstance(abort, Abort)
    assert isinstance(end, End)
    assert (end.outcome, end.service_class) == (Outcome.EVICTED, "mirror")


def test_successor_does_not_send_a_copy_that_was_not_sent_before() -> None:
    scheduler = a_successor(policy=mirrored())
    report = waiting_report("r-mirror", MIRROR_TENANT)
    ticket = replace(report.ticket, mirror_route="stable", requested_class="interactive")
    commands = commands_for(scheduler, at(0), joined("c", pool=CANDIDATE), replace(report, ticket=ticket))

    assert only_end(commands).reason == "another scheduler took over before the copy was sent"


def test_running_copy_continues_under_a_policy_without_mirrors() -> None:
    scheduler = a_fleet()
    scheduler.handle(a_copy(), at(0))
    plain = replace(mirrored(), models=(Model(ModelName("m"), (STABLE,)),))
    commands_for(scheduler, at(1), policy_changed(plain, "h2"))

    assert only_end(scheduler.handle(completed("r-mirror"), at(2))).outcome is Outcome.COMPLETED
    assert only_end(scheduler.handle(a_copy("s"), at(3))).outcome is Outcome.NO_ENDPOINTS
