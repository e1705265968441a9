"""LoRA adapters: slots on endpoints, routing to active adapters, and turns of adapters that share a slot."""

from dataclasses import replace

import pytest

from headgate.core.commands import Command, Dispatch
from headgate.core.events import EndpointJoined, Event, RequestArrived, TimerFired
from headgate.core.request_state import Request
from headgate.core.routing.fleet import FleetState
from headgate.core.routing.router import Candidate, LeastTimeRouter
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import Endpoint, EndpointState
from headgate.model.fault import Fault
from headgate.model.outcome import Outcome
from headgate.model.overrides import SetRouteWeights
from headgate.model.policy import Model, Policy, Pool, RoutingRules
from headgate.model.prefix import pack_hashes
from headgate.model.units import ModelName, PoolName
from testing.builders import (
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    client_disconnected,
    commands_for,
    completed,
    duration,
    failed,
    first_token,
    leaving,
    only_end,
    policy_changed,
    readied,
)
from testing.builds import IS_COMPILED
from testing.takeover_reports import a_successor, running_report

LOAD = 0.2
TURN = 5 * LOAD
"""Minimum time for which an adapter keeps its slot."""


def adapter_policy(*names: str, max_lora: int | None = 2, load: float = LOAD) -> Policy:
    policy = a_policy()
    adapters = tuple(Model(ModelName(name), (PoolName("p"),), adapter=f"{name}-lora") for name in names or "abc")
    return replace(
        policy,
        models=policy.models + adapters,
        pools=(replace(policy.pools[0], max_lora=max_lora),),
        routing=RoutingRules(adapter_load_penalty_ns=duration(load)),
    )


def holding(name: str, *adapters: str, places: int = 8, max_lora: int | None = None) -> Endpoint:
    held = tuple(f"{each}-lora" for each in adapters) if adapters else None
    return replace(an_endpoint(name, places=places), adapters=held, max_lora=max_lora)


def sent(commands: list[Command]) -> list[tuple[str, str]]:
    """Request and endpoint of each dispatch."""
    return [(each.request_id, each.endpoint_id) for each in commands if isinstance(each, Dispatch)]


def dispatched(scheduler: Scheduler, request: str, model: str, now: float = 0) -> Dispatch | None:
    found = [each for each in scheduler.handle(arrived(request, model=model), at(now)) if isinstance(each, Dispatch)]
    return found[0] if found else None


def test_dispatch_names_the_adapter_of_the_model() -> None:
    scheduler = a_scheduler(holding("e1"), policy=adapter_policy())

    with_adapter, without = dispatched(scheduler, "r1", "a"), dispatched(scheduler, "r2", "m")

    assert with_adapter is not None
    assert without is not None
    assert (with_adapter.adapter, with_adapter.model) == ("a-lora", None)
    assert with_adapter.reason.endswith('; adapter "a-lora" has to be loaded')
    assert without.adapter == ""
    assert "adapter" not in without.reason


@pytest.mark.parametrize(
    ("configured", "reported", "slots"), [(2, None, 2), (None, 3, 3), (None, None, 1), (1, 3, 1), (3, 2, 3)]
)
def test_number_of_distinct_adapters_on_an_endpoint_is_limited(
    configured: int | None, reported: int | None, slots: int
) -> None:
    names = "abcd"
    policy = adapter_policy(*names, max_lora=configured)
    scheduler = a_scheduler(holding("e1", *names, max_lora=reported), policy=policy)

    taken = [name for name in names if dispatched(scheduler, name, name) is not None]

    assert taken == list(names[:slots])
    assert dispatched(scheduler, "again", "a") is not None
    assert dispatched(scheduler, "base", "m") is not None


def test_retry_returns_to_the_only_endpoint_that_holds_the_adapter() -> None:
    policy = adapter_policy()
    scheduler = a_scheduler(holding("e1", "a"), holding("e2", "b"), policy=policy)
    assert dispatched(scheduler, "r1", "a") is not None

    assert sent(commands_for(scheduler, at(0.1), failed("r1", fault=Fault.CONNECTION))) == [("r1", "e1")]


def test_request_waits_for_the_ejected_holder_of_its_adapter() -> None:
    scheduler = a_scheduler(holding("e1", "a"), holding("e2", "b"), policy=adapter_policy())
    for number in range(3):
        name = f"r{number}"
        assert dispatched(scheduler, name, "a", number) is not None
        commands_for(scheduler, at(number), failed(name, fault=Fault.CONNECTION), client_disconnected(name))
    assert [each.state for each in scheduler.summary().endpoints] == [EndpointState.EJECTED, EndpointState.READY]

    assert commands_for(scheduler, at(3), arrived("late", model="a")) == []


def test_adapter_gets_the_slot_of_the_last_request_that_ends() -> None:
    scheduler = a_scheduler(holding("e1"), policy=adapter_policy(max_lora=1))
    assert dispatched(scheduler, "r1", "a") is not None
    assert dispatched(scheduler, "r2", "a") is not None
    assert dispatched(scheduler, "r3", "b") is None

    assert sent(commands_for(scheduler, at(0.1), completed("r1"))) == []
    assert sent(commands_for(scheduler, at(0.2), completed("r2"))) == [("r3", "e1")]


def test_endpoint_with_the_active_adapter_is_preferred_until_its_load_exceeds_the_loading_time() -> None:
    scheduler = a_scheduler(holding("e1", places=400), holding("e2", places=400), policy=adapter_policy(load=0.002))
    first = dispatched(scheduler, "r0", "a")
    assert first is not None
    assert first.endpoint_id == "e1"
    assert dict(first.costs)["adapter_load"] == duration(0.002)
    others = [dispatched(scheduler, f"r{number}", "a") for number in range(1, 6)]

    assert [each.endpoint_id for each in others if each is not None] == ["e1", "e1", "e2", "e2", "e2"]
    loads = ["adapter_load" in dict(each.costs) for each in others if each is not None]
    assert loads == [False, False, True, False, False]


def test_adapter_stays_active_after_its_last_request() -> None:
    scheduler = a_scheduler(holding("e1"), holding("e2"), policy=adapter_policy(max_lora=1))
    assert dispatched(scheduler, "r1", "a") is not None
    commands_for(scheduler, at(1), completed("r1"))
    assert dispatched(scheduler, "r2", "b", 2) is not None
    commands_for(scheduler, at(3), completed("r2"))

    again = dispatched(scheduler, "r3", "a", 4)

    assert again is not None
    assert again.endpoint_id == "e1"
    assert "adapter_load" not in dict(again.costs)
    assert again.reason.endswith('; adapter "a-lora" is active')


def test_request_goes_only_to_endpoints_that_hold_its_adapter() -> None:
    scheduler = a_scheduler(holding("e1", "a"), holding("e2", "b"), policy=adapter_policy())

    assert [dispatched(scheduler, f"r{number}", "b").endpoint_id for number in range(5)] == ["e2"] * 5  # pyright: ignore[reportOptionalMemberAccess]


def test_adapter_that_no_endpoint_holds_is_rejected_with_retry_after() -> None:
    scheduler = a_scheduler(holding("e1", "a"), holding("e2", "b"), policy=adapter_policy())

    refused = only_end(scheduler.handle(arrived("r1", model="c"), at(0)))

    assert refused.outcome is Outcome.NO_ENDPOINTS
    assert refused.retry_after_ns is not None
    assert 'holds adapter "c-lora"' in refused.reason


def test_adapter_loaded_later_is_served() -> None:
    scheduler = a_scheduler(holding("e1", "a"), policy=adapter_policy())
    commands_for(scheduler, at(1), EndpointJoined(holding("e1", "a", "c")))

    assert dispatched(scheduler, "r1", "c", 1) is not None


def test_prefix_cached_with_one_adapter_is_not_a_hit_for_another() -> None:
    policy = adapter_policy("a", "b", load=0)
    scheduler = a_scheduler(holding("e1", places=64), policy=policy)

    def cached(request: str, model: str) -> bool:
        ticket = replace(
            arrived(request, model=model, prompt_bytes=4_096).ticket, prefix_hashes=pack_hashes([11, 12, 13])
        )
        [command] = scheduler.handle(RequestArrived(ticket), at(0))
        assert isinstance(command, Dispatch)
        scheduler.handle(first_token(request), at(0))
        return "cached" in command.reason

    assert [cached("r1", "a"), cached("r2", "a"), cached("r3", "b"), cached("r4", "m"), cached("r5", "b")] == [
        *(False, True, False, False, True)
    ]


def test_waiting_adapter_does_not_block_others() -> None:
    scheduler = a_scheduler(holding("e1"), policy=adapter_policy())
    assert dispatched(scheduler, "r1", "a") is not None
    assert dispatched(scheduler, "r2", "b") is not None
    assert dispatched(scheduler, "r3", "c") is None

    assert dispatched(scheduler, "r4", "a", 0.1) is not None
    assert dispatched(scheduler, "r5", "m", 0.1) is not None


def test_adapter_with_the_fewest_requests_drains_on_the_least_loaded_endpoint() -> None:
    scheduler = a_scheduler(holding("e1"), holding("e2"), holding("e3"), policy=adapter_policy("a", "b", max_lora=1))
    for number in range(6):
        assert dispatched(scheduler, f"a{number}", "a") is not None
    places = {each.id: each.in_flight for each in scheduler.summary().endpoints}
    assert places["e1"] == 6, "an active adapter must attract requests"

    scheduler = a_scheduler(
        *(holding(name, adapter) for name, adapter in (("e1", "a"), ("e2", "c"), ("e3", "d"))),
        policy=adapter_policy("a", "b", "c", "d", max_lora=1),
    )
    for request in ("a1", "a2", "c1", "d1", "d2"):
        assert dispatched(scheduler, request, request[0]) is not None
    for name, adapter in (("e1", "a"), ("e2", "c"), ("e3", "d")):
        commands_for(scheduler, at(0), EndpointJoined(holding(name, adapter, "b")))
    assert dispatched(scheduler, "b1", "b", TURN + 0.1) is None

    assert sent(commands_for(scheduler, at(TURN + 0.2), completed("c1"))) == [("b1", "e2")]
    assert {each.id: each.adapters for each in scheduler.summary().endpoints} == {
        "e1": (("a-lora", 2),),
        "e2": (("b-lora", 1),),
        "e3": (("d-lora", 2),),
    }


def test_adapter_makes_way_only_on_an_endpoint_that_holds_the_waiting_one() -> None:
    endpoints = holding("e1", "a", "b"), holding("e2", "c")
    scheduler = a_scheduler(*endpoints, policy=adapter_policy(max_lora=1))
    for request in ("a1", "a2", "c1"):
        assert dispatched(scheduler, request, request[0]) is not None
    assert dispatched(scheduler, "b1", "b", TURN + 0.1) is None

    assert dispatched(scheduler, "c2", "c", TURN + 0.2) is not None
    assert dispatched(scheduler, "a3", "a", TURN + 0.2) is None
    assert sent(commands_for(scheduler, at(TURN + 0.3), completed("a1"), completed("a2"))) == [("b1", "e1")]


def test_waiting_adapter_drains_only_one_endpoint() -> None:
    endpoints = holding("e1", "a", "b"), holding("e2", "c", "b")
    scheduler = a_scheduler(*endpoints, policy=adapter_policy(max_lora=1))
    assert [dispatched(scheduler, each, each[0]) is not None for each in ("a1", "c1", "c2")] == [True] * 3
    # Long prompts have a queue of their own, so the adapter is first in two queues.
    waiting = (arrived("b1", model="b"), arrived("b2", model="b", prompt_bytes=4 * 10_000))
    assert sent(commands_for(scheduler, at(TURN / 2), *waiting)) == []
    assert dispatched(scheduler, "base", "m", TURN + 0.1) is not None

    assert dispatched(scheduler, "a2", "a", TURN + 0.2) is None
    assert dispatched(scheduler, "c3", "c", TURN + 0.2) is not None


def test_adapter_keeps_its_slot_while_its_endpoint_has_no_headroom() -> None:
    endpoints = holding("e1", "a", "b"), holding("e2", "c")
    scheduler = a_scheduler(*endpoints, policy=adapter_policy(max_lora=1))
    commands_for(scheduler, at(0), arrived("a1", model="a", prompt_bytes=4 * 2_000))
    assert dispatched(scheduler, "a2", "a", TURN + 0.1) is None
    assert dispatched(scheduler, "b1", "b", TURN + 0.2) is None

    # The first request in order gets the headroom. After it, adapter a makes way.
    assert sent(commands_for(scheduler, at(TURN + 0.3), first_token("a1"))) == [("a2", "e1")]
    assert dispatched(scheduler, "a3", "a", TURN + 0.4) is None
    assert sent(commands_for(scheduler, at(TURN + 0.5), completed("a1"), completed("a2"))) == [("b1", "e1")]


def test_slots_of_adopted_attempts_are_occupied() -> None:
    scheduler = a_successor(policy=adapter_policy(max_lora=1))
    commands_for(scheduler, at(1), EndpointJoined(holding("e1")), running_report("r1", model="a"), readied("e1"))

    assert dispatched(scheduler, "r2", "b", 1) is None
    assert dispatched(scheduler, "r3", "a", 1) is not None
    commands_for(scheduler, at(2), completed("r1"))
    assert sent(commands_for(scheduler, at(3), completed("r3"))) == [("r2", "e1")]


def discovering_policy() -> Policy:
    policy = adapter_policy("a")
    return replace(policy, pools=(replace(policy.pools[0], discovers_adapters=True),))


def test_discovered_adapter_is_a_model_and_stays_one_after_a_policy_change() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=8), policy=discovering_policy())
    assert only_end(scheduler.handle(arrived("r0", model="x-lora"), at(0))).outcome is Outcome.MODEL_NOT_FOUND
    commands_for(scheduler, at(1), EndpointJoined(replace(an_endpoint("e1", places=8), adapters=("a-lora", "x-lora"))))

    found = dispatched(scheduler, "r1", "x-lora", 1)
    assert found is not None
    assert found.adapter == "x-lora"
    # A declared adapter has only the declared name.
    assert only_end(scheduler.handle(arrived("r2", model="a-lora"), at(1))).outcome is Outcome.MODEL_NOT_FOUND

    commands_for(scheduler, at(2), policy_changed(discovering_policy(), "h2"))
    assert dispatched(scheduler, "r3", "x-lora", 2) is not None
    commands_for(scheduler, at(3), policy_changed(adapter_policy("a"), "h3"))
    assert only_end(scheduler.handle(arrived("r4", model="x-lora"), at(3))).outcome is Outcome.MODEL_NOT_FOUND


def test_discovered_adapter_stays_a_model_when_route_weights_end() -> None:
    weights = SetRouteWeights(ModelName("m"), (("new", 1),), at(5))
    policy = replace(discovering_policy(), overrides=(weights,))
    scheduler = a_scheduler(an_endpoint("e1", places=8), policy=policy)
    commands_for(scheduler, at(1), EndpointJoined(replace(an_endpoint("e1", places=8), adapters=("x-lora",))))

    scheduler.handle(TimerFired(), at(5))
    assert dispatched(scheduler, "r1", "x-lora", 5) is not None


def test_adapter_discovered_in_two_pools_is_one_model() -> None:
    pools = tuple(Pool(PoolName(name), discovers_adapters=True, max_lora=1) for name in "pq")
    scheduler = a_scheduler(
        *(replace(an_endpoint(f"{name}1", pool=name), adapters=("x",)) for name in "pq"),
        policy=replace(a_policy(), pools=pools),
    )

    endpoints = {found.endpoint_id for each in ("r1", "r2") if (found := dispatched(scheduler, each, "x")) is not None}
    assert endpoints == {"p1", "q1"}


def test_adapters_of_a_pool_that_does_not_discover_them_are_no_models() -> None:
    scheduler = a_scheduler(holding("e1", "a", "x"), policy=adapter_policy("a"))

    assert only_end(scheduler.handle(arrived("r1", model="x-lora"), at(0))).outcome is Outcome.MODEL_NOT_FOUND


def a_contended_endpoint() -> Scheduler:
    """One endpoint on which adapters a and b occupy both slots, and c has waited for a turn."""
    scheduler = a_scheduler(holding("e1"), policy=adapter_policy())
    assert dispatched(scheduler, "a1", "a") is not None
    assert dispatched(scheduler, "b1", "b", 0.1) is not None
    assert dispatched(scheduler, "c1", "c", 0.2) is None
    # Any later event offers the slots again, in the order of arrival: c1 first.
    assert dispatched(scheduler, "b2", "b", TURN + 0.2) is not None
    return scheduler


def test_least_recently_used_adapter_drains_after_its_turn() -> None:
    scheduler = a_contended_endpoint()

    assert dispatched(scheduler, "a2", "a", TURN + 0.3) is None
    assert dispatched(scheduler, "b3", "b", TURN + 0.3) is not None
    assert sent(commands_for(scheduler, at(TURN + 0.4), completed("a1"))) == [("c1", "e1")]
    assert dispatched(scheduler, "c2", "c", TURN + 0.5) is not None
    assert sent(commands_for(scheduler, at(TURN + 0.6), completed("c1"))) == []
    assert sent(commands_for(scheduler, at(TURN + 0.7), completed("c2"))) == [("a2", "e1")]


def test_drained_adapter_is_served_again_if_the_waiting_request_leaves() -> None:
    scheduler = a_contended_endpoint()
    assert dispatched(scheduler, "a2", "a", TURN + 0.3) is None

    commands = commands_for(scheduler, at(TURN + 0.4), client_disconnected("c1"))

    assert sent(commands) == [("a2", "e1")]


def test_reserved_slot_is_given_back_if_the_endpoint_leaves() -> None:
    scheduler = a_contended_endpoint()
    assert dispatched(scheduler, "a2", "a", TURN + 0.3) is None
    joined = commands_for(scheduler, at(TURN + 0.4), EndpointJoined(holding("e2")))
    assert sent(joined) == []

    commands_for(scheduler, at(TURN + 0.5), leaving("e1"))
    commands = commands_for(scheduler, at(TURN + 0.6), readied("e2"))

    assert sorted(sent(commands)) == [("a2", "e2"), ("c1", "e2")]


def test_another_waiting_adapter_does_not_take_the_reserved_slot() -> None:
    policy = adapter_policy("a", "b", "c", "d")
    scheduler = a_scheduler(holding("e1"), policy=policy)
    for number, (request, model) in enumerate([("a1", "a"), ("b1", "b"), ("c1", "c"), ("d1", "d")]):
        dispatched(scheduler, request, model, number / 100)
    assert dispatched(scheduler, "b2", "b", TURN + 0.2) is not None

    assert sent(commands_for(scheduler, at(TURN + 0.3), completed("a1"))) == [("c1", "e1")]


def test_removed_adapter_ends_queued_requests_and_frees_nothing_twice() -> None:
    scheduler = a_contended_endpoint()
    assert dispatched(scheduler, "a2", "a", TURN + 0.3) is None

    commands = commands_for(scheduler, at(TURN + 0.4), policy_changed(adapter_policy("a", "b"), "h2"))

    assert only_end([each for each in commands if not isinstance(each, Dispatch)]).outcome is Outcome.MODEL_NOT_FOUND
    assert sent(commands) == [("a2", "e1")]


# Cost of a decision


class CountingRouter(LeastTimeRouter):
    choices = 0

    def choose(self, request: Request, pools: tuple[PoolName, ...], fleet: FleetState) -> Candidate | None:
        CountingRouter.choices += 1
        return super().choose(request, pools, fleet)


@pytest.mark.skipif(IS_COMPILED, reason="a compiled class cannot have an interpreted subclass")
@pytest.mark.parametrize("event", [completed("r0"), arrived("new", model="x0"), arrived("base")])
def test_blocked_adapters_are_not_routed_with_each_event(event: Event) -> None:
    names = tuple(f"x{number}" for number in range(60))
    router = CountingRouter()
    endpoints = (holding(f"e{number}", places=8) for number in range(5))
    scheduler = a_scheduler(*endpoints, policy=adapter_policy(*names, max_lora=2), router=router)
    for number, name in enumerate(names):
        dispatched(scheduler, f"r{number}", name)
    assert scheduler.summary().queued["interactive"] == 50

    CountingRouter.choices = 0
    commands_for(scheduler, at(TURN / 2), event)

    assert CountingRouter.choices <= 2
