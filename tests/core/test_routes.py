"""Which route of a model serves a request."""

from collections import Counter
from dataclasses import replace

import pytest

from headgate.core.admission.gate import Admitted, check_policy
from headgate.core.commands import Command, Dispatch
from headgate.core.events import RequestArrived, TimerFired
from headgate.core.routing.model_routes import sticky_point
from headgate.core.rules import Rules
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.overrides import PinDegradation, SetRouteWeights
from headgate.model.policy import Model, ModelTierRule, Policy
from headgate.model.routes import ModelRoute, RouteMatch, Sticky
from headgate.model.tenant import Plan, Tenant
from headgate.model.ticket import Ticket
from headgate.model.units import ClassName, ModelName, PoolName, TenantId
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    failed,
    joined,
    only_end,
    policy_changed,
    readied,
)
from testing.takeover_reports import a_successor, running_report, waiting_report

OLD, NEW, BETA = PoolName("old"), PoolName("new"), PoolName("beta")
TENANTS = (
    Tenant(TenantId("acme"), plan=Plan.FREE),
    Tenant(TenantId("acme/search")),
    Tenant(TenantId("acmeco")),
)


def route(pool: PoolName, weight: int = 1, **criteria: object) -> ModelRoute:
    return ModelRoute(str(pool), (pool,), weight, RouteMatch(**criteria))  # type: ignore[arg-type]


def routed(*routes: ModelRoute, sticky: Sticky = Sticky.REQUEST, **changes: object) -> Policy:
    model = Model(ModelName("m"), (OLD,), routes=routes, sticky=sticky)
    policy = a_policy(pools=(OLD, NEW, BETA), models=(replace(model, **changes),))  # type: ignore[arg-type]
    return replace(policy, tenants=TENANTS)


def ticket(request: str = "r", tenant: str = "acme", **changes: object) -> Ticket:
    return replace(arrived(request, tenant).ticket, **changes)


def route_of(policy: Policy, asked: Ticket, kept: str = "") -> str:
    verdict = check_policy(asked, Rules(policy, "h"), kept)
    assert isinstance(verdict, Admitted)
    return verdict.route


def shares(policy: Policy, count: int) -> dict[str, float]:
    """Returns each route's share of requests, in percent."""
    rules = Rules(policy, "h")
    found: Counter[str] = Counter()
    for number in range(count):
        verdict = check_policy(ticket(f"req_{number}"), rules)
        assert isinstance(verdict, Admitted)
        found[verdict.route] += 1
    return {name: 100 * each / count for name, each in found.items()}


def with_pools(policy: Policy, *pools: PoolName, places: int = 100) -> Scheduler:
    return a_scheduler(*(an_endpoint(f"e-{pool}", pool=pool, places=places) for pool in pools), policy=policy)


def sent(commands: list[Command]) -> Dispatch:
    [found] = [each for each in commands if isinstance(each, Dispatch)]
    return found


# Match


def test_model_without_routes_has_no_route() -> None:
    assert route_of(routed(), ticket()) == ""


def test_model_pools_serve_if_no_route_matches() -> None:
    verdict = check_policy(ticket(), Rules(routed(route(NEW, classes=(ClassName("batch"),))), "h"))

    assert isinstance(verdict, Admitted)
    assert (verdict.route, verdict.pools) == ("", (OLD,))


@pytest.mark.parametrize(
    ("criteria", "changes"),
    [
        ({"tenants": (TenantId("acme"),)}, {"tenant": "acmeco"}),
        ({"plans": (Plan.FREE,)}, {"tenant": "acmeco"}),
        ({"classes": (ClassName("batch"),)}, {"requested_class": "interactive"}),
        ({"headers": (("x-beta", ("1", "yes")),)}, {"route_headers": (("x-beta", "no"),)}),
    ],
)
def test_route_matches_only_requests_that_meet_its_criterion(
    criteria: dict[str, object], changes: dict[str, object]
) -> None:
    policy = routed(route(BETA, **criteria), route(NEW))
    meets = ticket(tenant="acme", requested_class="batch", route_headers=(("x-beta", "yes"),))

    assert route_of(policy, meets) == "beta"
    assert route_of(policy, replace(meets, **changes)) == "new"  # type: ignore[arg-type]


def test_route_for_a_tenant_matches_the_tenants_below_it() -> None:
    assert route_of(routed(route(BETA, tenants=(TenantId("acme"),))), ticket(tenant="acme/search")) == "beta"


def test_first_matching_group_decides_even_if_its_routes_are_apart() -> None:
    headers = (("x-beta", ("1",)),)
    policy = routed(route(BETA, headers=headers), route(OLD), replace(route(NEW, headers=headers), name="second"))
    beta = Counter(route_of(policy, ticket(f"r{n}", route_headers=(("x-beta", "1"),))) for n in range(200))

    assert set(beta) == {"beta", "second"}
    assert route_of(policy, ticket()) == "old"


def test_routes_whose_pools_the_class_may_not_use_are_left_out() -> None:
    policy = replace(
        routed(route(OLD, 1), route(NEW, 99)),
        classes=(a_class("interactive", pools=("old",)), a_class("batch", band=1)),
    )

    assert {route_of(policy, ticket(f"r{n}")) for n in range(50)} == {"old"}


def test_group_without_usable_traffic_does_not_match() -> None:
    assert route_of(routed(route(BETA, 0, plans=(Plan.FREE,)), route(NEW)), ticket()) == "new"


def test_tier_rules_choose_among_the_pools_of_the_route() -> None:
    pair = ModelRoute("candidate", (NEW, BETA))
    policy = routed(pair, pools=(OLD, NEW, BETA), tiers=(ModelTierRule((OLD,)), ModelTierRule((BETA,))))
    verdict = check_policy(ticket(), Rules(policy, "h"))

    assert isinstance(verdict, Admitted)
    assert (verdict.route, verdict.pools) == ("candidate", (BETA,))


# Weights


def test_shares_follow_the_weights() -> None:
    found = shares(routed(route(OLD, 900), route(NEW, 90), route(BETA, 10)), 50_000)

    assert found["old"] == pytest.approx(90, abs=0.5)
    assert found["new"] == pytest.approx(9, abs=0.5)
    assert found["beta"] == pytest.approx(1, abs=0.2)


@pytest.mark.nightly
def test_shares_of_a_million_requests_are_within_two_tenths_of_a_point() -> None:
    found = shares(routed(route(OLD, 94), route(NEW, 5), route(BETA, 1)), 1_000_000)

    assert found == {
        "old": pytest.approx(94, abs=0.2),
        "new": pytest.approx(5, abs=0.2),
        "beta": pytest.approx(1, abs=0.2),
    }


def test_route_with_weight_0_gets_no_traffic() -> None:
    assert shares(routed(route(OLD, 1), route(NEW, 0)), 500) == {"old": 100}


def test_larger_weight_moves_requests_in_one_direction_only() -> None:
    before, after = routed(route(OLD, 95), route(NEW, 5)), routed(route(OLD, 75), route(NEW, 25))
    moves = Counter((route_of(before, ticket(f"r{n}")), route_of(after, ticket(f"r{n}"))) for n in range(2_000))

    assert moves["new", "old"] == 0
    assert moves["old", "new"] == pytest.approx(400, abs=80)


# Sticky keys


def test_requests_with_the_same_key_take_the_same_route() -> None:
    policy = routed(route(OLD), route(NEW), sticky=Sticky.USER)
    by_user = {
        user: {
            route_of(policy, ticket(f"{user}{n}", sticky_keys=(("session", f"{n}"), ("user", user)))) for n in range(9)
        }
        for user in map(str, range(20))
    }

    assert all(len(routes) == 1 for routes in by_user.values())
    assert len(set.union(*by_user.values())) == 2


def test_requests_without_the_key_are_decided_by_their_id() -> None:
    policy = routed(route(OLD), route(NEW), sticky=Sticky.SESSION)

    assert {route_of(policy, ticket(f"r{n}")) for n in range(50)} == {"old", "new"}


def test_tenants_keep_to_their_route_and_have_separate_keys() -> None:
    model = Model(ModelName("m"), (OLD,), sticky=Sticky.TENANT)

    assert sticky_point(model, ticket("a", "acme")) == sticky_point(model, ticket("b", "acme"))
    assert sticky_point(model, ticket("a", "acme")) != sticky_point(model, ticket("a", "acmeco"))


def test_models_decide_independently() -> None:
    points = [sticky_point(Model(ModelName(name), (OLD,)), ticket()) for name in ("m", "n")]

    assert points[0] != points[1]


# Retries, degradation, fallbacks


def a_request_for(policy: Policy, name: str) -> RequestArrived:
    """Returns an arrival that takes this route."""
    return next(arrived(f"r{n}") for n in range(10_000) if route_of(policy, ticket(f"r{n}")) == name)


def test_dispatch_names_the_route() -> None:
    policy = routed(route(OLD, 99), route(NEW, 1))
    dispatch = sent(with_pools(policy, OLD, NEW).handle(a_request_for(policy, "new"), at(0)))

    assert (dispatch.route, dispatch.pool, dispatch.model) == ("new", "new", None)


def test_retry_keeps_the_route_even_if_its_weight_has_changed() -> None:
    policy = routed(route(OLD, 99), route(NEW, 1))
    scheduler = a_scheduler(
        an_endpoint("o", pool=OLD), an_endpoint("n1", pool=NEW), an_endpoint("n2", pool=NEW), policy=policy
    )
    request = a_request_for(policy, "new")
    first = sent(scheduler.handle(request, at(0)))
    changed = routed(route(OLD, 999_999), route(NEW, 1))
    commands_for(scheduler, at(1), policy_changed(changed, "h2"))
    second = sent(scheduler.handle(failed(request.ticket.request_id), at(2)))

    assert route_of(changed, request.ticket) == "old"
    assert (second.route, {first.endpoint_id, second.endpoint_id}) == ("new", {"n1", "n2"})


def test_retry_leaves_a_route_that_gets_no_more_traffic() -> None:
    policy = routed(route(OLD, 99), route(NEW, 1))
    scheduler = with_pools(policy, OLD, NEW)
    request = a_request_for(policy, "new")
    scheduler.handle(request, at(0))
    commands_for(scheduler, at(1), policy_changed(routed(route(OLD, 99), route(NEW, 0)), "h2"))

    assert sent(scheduler.handle(failed(request.ticket.request_id), at(2))).route == "old"


def test_queued_request_follows_new_weights_until_it_is_sent() -> None:
    policy = routed(route(OLD, 0), route(NEW, 1))
    scheduler = with_pools(policy, OLD, NEW, places=1)
    commands_for(scheduler, at(0), arrived("running"), arrived("queued"))

    assert sent(scheduler.handle(policy_changed(routed(route(OLD, 1), route(NEW, 0)), "h2"), at(1))).route == "old"


def test_short_prompt_stays_in_its_route_under_degradation() -> None:
    """Without the route, level 3 would move the request from `new` to the smaller pool `old`."""
    tiers = (ModelTierRule((NEW,)),)
    pinned = (PinDegradation(NEW, 3, at(100)),)
    routes = routed(route(NEW), pools=(OLD, NEW), tiers=tiers)
    unrouted = replace(routes, models=(replace(routes.models[0], routes=()),))
    found = [
        sent(with_pools(replace(each, overrides=pinned), OLD, NEW).handle(arrived("r", "acmeco"), at(0))).pool
        for each in (routes, unrouted)
    ]

    assert found == ["new", "old"]


def test_fallback_serves_if_no_endpoint_of_the_route_is_live() -> None:
    policy = routed(route(NEW), fallbacks=(ModelName("spare"),))
    policy = replace(policy, models=(*policy.models, Model(ModelName("spare"), (OLD,))))
    dispatch = sent(with_pools(policy, OLD).handle(arrived("r"), at(0)))

    assert (dispatch.pool, dispatch.model, dispatch.route) == ("old", "spare", "")


def test_other_routes_do_not_serve_if_the_route_has_no_live_endpoint() -> None:
    policy = routed(route(OLD, 99), route(NEW, 1))
    ended = only_end(with_pools(policy, OLD).handle(a_request_for(policy, "new"), at(0)))

    assert ended.outcome is Outcome.NO_ENDPOINTS


# Operators' weights


def weights(until: float = 10, model: str = "m", **changed: int) -> SetRouteWeights:
    return SetRouteWeights(ModelName(model), tuple(changed.items()), at(until))


def test_override_replaces_weights_until_it_ends() -> None:
    policy = replace(
        routed(route(OLD, 1), route(NEW, 0)), overrides=(weights(old=0, new=1), weights(model="gone", x=1))
    )
    scheduler = with_pools(policy, OLD, NEW)

    assert sent(scheduler.handle(arrived("a"), at(1))).route == "new"
    scheduler.handle(TimerFired(), at(10))
    assert sent(scheduler.handle(arrived("b"), at(10))).route == "old"


def test_latest_override_of_a_route_applies() -> None:
    policy = replace(routed(route(OLD, 1), route(NEW, 0)), overrides=(weights(old=0, new=1), weights(old=1, new=0)))

    assert route_of(policy, ticket()) == "old"


def test_tenant_change_keeps_the_weights_of_an_override() -> None:
    policy = replace(routed(route(OLD, 1), route(NEW, 0)), overrides=(weights(old=0, new=1),))
    scheduler = with_pools(policy, OLD, NEW)
    commands_for(scheduler, at(1), policy_changed(replace(policy, tenants=TENANTS[:2]), "h2"))

    assert sent(scheduler.handle(arrived("a"), at(2))).route == "new"


# Another scheduler


def test_successor_keeps_the_route_of_a_running_attempt_for_its_retry() -> None:
    policy = routed(route(OLD), route(NEW))
    request = a_request_for(policy, "old").ticket.request_id
    scheduler = a_successor(policy=policy)
    commands_for(scheduler, at(0), joined("o", pool=OLD), joined("n", pool=NEW))
    commands_for(scheduler, at(0), replace(running_report(request, endpoint="n", pool="new"), route="new"))
    commands_for(scheduler, at(0), readied("o"), readied("n"))

    assert sent(scheduler.handle(failed(request), at(1))).route == "new"


def test_successor_keeps_the_route_of_a_queued_request_that_was_sent_before() -> None:
    policy = routed(route(OLD), route(NEW))
    request = a_request_for(policy, "old").ticket.request_id
    scheduler = a_successor(policy=policy)
    report = replace(waiting_report(request, attempts=1, age=2), route="new")
    commands = commands_for(
        scheduler, at(0), joined("o", pool=OLD), joined("n", pool=NEW), report, readied("o"), readied("n")
    )

    assert sent(commands).route == "new"
