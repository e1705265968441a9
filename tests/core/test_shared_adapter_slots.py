"""Adapter slots of an engine that several pools share."""

from dataclasses import replace

from headgate.core.events import EndpointJoined
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import Endpoint
from headgate.model.policy import Model, Policy, RoutingRules
from headgate.model.units import ModelName, PoolName
from testing.builders import (
    a_model,
    a_policy,
    a_scheduler,
    an_endpoint,
    at,
    commands_for,
    completed,
    duration,
    leaving,
    readied,
    unreadied,
)
from tests.core.test_adapters import LOAD, TURN, dispatched, sent

TWO_POOLS = ("p", "q")


def two_pool_policy(*names: str, max_lora: int = 2) -> Policy:
    """Adapters a and b in pool p, all others in pool q, which is on the same engine."""
    policy = a_policy(pools=TWO_POOLS, models=(a_model("m", "p"), a_model("n", "q")))
    adapters = tuple(
        Model(ModelName(name), (PoolName("p" if name in "ab" else "q"),), adapter=f"{name}-lora")
        for name in names or "abcd"
    )
    return replace(
        policy,
        models=policy.models + adapters,
        pools=tuple(replace(each, max_lora=max_lora) for each in policy.pools),
        routing=RoutingRules(adapter_load_penalty_ns=duration(LOAD)),
    )


def on_engine(name: str, pool: str, *adapters: str, engine: str = "x") -> Endpoint:
    held = tuple(f"{each}-lora" for each in adapters)
    return replace(an_endpoint(name, pool=pool, places=8), engine=engine, adapters=held)


def a_shared_engine(max_lora: int = 2) -> Scheduler:
    endpoints = on_engine("e1", "p", "a", "b"), on_engine("e2", "q", "c", "d")
    return a_scheduler(*endpoints, policy=two_pool_policy(max_lora=max_lora))


def in_flight(scheduler: Scheduler) -> dict[str, dict[str, int]]:
    return {each.id: dict(each.adapters) for each in scheduler.summary().endpoints}


def test_adapters_of_two_pools_share_the_slots_of_their_engine() -> None:
    scheduler = a_shared_engine()

    taken = [name for name in "acbd" if dispatched(scheduler, name, name) is not None]

    assert taken == ["a", "c"]
    assert in_flight(scheduler) == {"e1": {"a-lora": 1}, "e2": {"c-lora": 1}}
    assert sent(commands_for(scheduler, at(0.1), completed("a"))) == [("b", "e1")]
    assert sent(commands_for(scheduler, at(0.2), completed("b"))) == [("d", "e2")]


def test_slot_reserved_in_one_pool_is_not_taken_in_the_other() -> None:
    scheduler = a_shared_engine(max_lora=1)
    assert dispatched(scheduler, "a1", "a") is not None
    assert dispatched(scheduler, "c1", "c", TURN + 0.1) is None
    # The adapter of pool p makes way for that of pool q.
    assert dispatched(scheduler, "a2", "a", TURN + 0.2) is None
    assert dispatched(scheduler, "b1", "b", TURN + 0.2) is None

    assert sent(commands_for(scheduler, at(TURN + 0.3), completed("a1"))) == [("c1", "e2")]
    assert dispatched(scheduler, "c2", "c", TURN + 0.4) is not None


def test_reservation_ends_when_the_endpoint_moves_to_another_engine() -> None:
    scheduler = a_shared_engine(max_lora=1)
    assert dispatched(scheduler, "a1", "a") is not None
    assert dispatched(scheduler, "c1", "c", TURN + 0.1) is None

    # The requests in flight of adapter a move with their endpoint, so the slot of the other engine is free.
    moved = commands_for(scheduler, at(TURN + 0.2), EndpointJoined(on_engine("e1", "p", "a", "b", engine="y")))

    assert sent(moved) == [("c1", "e2")]
    assert dispatched(scheduler, "a2", "a", TURN + 0.3) is not None
    assert in_flight(scheduler) == {"e1": {"a-lora": 2}, "e2": {"c-lora": 1}}


def test_slots_in_use_move_with_an_endpoint_that_joins_an_engine() -> None:
    endpoints = on_engine("e1", "p", "a", "b", engine=""), on_engine("e2", "q", "a", "c", engine="x")
    models = (Model(ModelName("a"), (PoolName("p"), PoolName("q")), adapter="a-lora"), *two_pool_policy("bc").models)
    scheduler = a_scheduler(*endpoints, policy=replace(two_pool_policy(max_lora=1), models=models))
    assert [dispatched(scheduler, f"a{number}", "a") is not None for number in range(4)] == [True] * 4
    before = in_flight(scheduler)

    commands_for(scheduler, at(1), EndpointJoined(on_engine("e1", "p", "a", "b")))
    assert in_flight(scheduler) == before
    commands_for(scheduler, at(2), *(completed(f"a{number}") for number in range(4)))
    assert in_flight(scheduler) == {"e1": {}, "e2": {}}


def test_adapters_stay_loaded_while_their_engine_serves_another_pool() -> None:
    scheduler = a_shared_engine()
    assert dispatched(scheduler, "c1", "c") is not None
    commands_for(scheduler, at(1), completed("c1"), leaving("e1"))

    kept = dispatched(scheduler, "c2", "c", 2)
    commands_for(scheduler, at(3), completed("c2"), unreadied("e2"), readied("e2"))
    restarted = dispatched(scheduler, "c3", "c", 4)

    assert [each and "has to be loaded" in each.reason for each in (kept, restarted)] == [False, True]
