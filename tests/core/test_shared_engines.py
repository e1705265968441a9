"""Tests for engines whose address belongs to several pools."""

from dataclasses import replace

import pytest

from headgate.core.commands import Command, Dispatch, Eject
from headgate.core.events import EndpointJoined, EndpointMetricsReported, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import Endpoint, EndpointProblem, EndpointState
from headgate.model.fault import Fault
from headgate.model.money import EndpointTime
from headgate.model.overrides import DrainEndpoint
from headgate.model.policy import Policy
from headgate.model.units import EndpointId, Instant
from testing.builders import (
    BATCH,
    INTERACTIVE,
    a_model,
    a_policy,
    a_pool,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    client_disconnected,
    commands_for,
    completed,
    duration,
    endpoint_summary,
    failed,
    first_token,
    leaving,
    policy_changed,
    probed,
    readied,
    unreadied,
)

MODELS = (a_model("m", "p"), a_model("n", "q"))
TWO_POOLS = a_policy(pools=("p", "q"), models=MODELS)
ONE_POOL = a_policy(pools=("p",), models=(a_model("m", "p"), a_model("n", "p")))


def on(engine: str, name: str, *, pool: str = "p", places: int = 4) -> Endpoint:
    return replace(an_endpoint(name, pool=pool, places=places), engine=engine)


def two_pools(*, places: int = 4, policy: Policy = TWO_POOLS) -> Scheduler:
    """Returns a scheduler with one engine that stands in the pools of models "m" and "n"."""
    return a_scheduler(on("x", "e1", places=places), on("x", "e2", pool="q", places=places), policy=policy)


def sent(commands: list[Command]) -> list[str]:
    return [each.request_id for each in commands if isinstance(each, Dispatch)]


def measured(name: str, running: int, *, waiting: int = 0, kv_percent: int | None = None) -> EndpointMetricsReported:
    return EndpointMetricsReported(EndpointId(name), running, waiting, kv_percent)


def asked(scheduler: Scheduler, model: str, *names: str, now: Instant | None = None, prompt: int = 25) -> list[str]:
    """Returns the requests that are sent immediately."""
    events = [arrived(name, model=model, prompt_bytes=4 * prompt) for name in names]
    return sent(commands_for(scheduler, now or at(0), *events))


# Capacity


def test_slots_of_an_engine_are_one_budget_for_all_its_pools() -> None:
    scheduler = two_pools(places=3)

    assert asked(scheduler, "m", "a", "b") == ["a", "b"]
    assert asked(scheduler, "n", "c", "d") == ["c"]
    assert sent(scheduler.handle(completed("a"), at(1))) == ["d"]


def test_kv_cache_of_an_engine_is_one_budget_for_all_its_pools() -> None:
    pools = tuple(replace(a_pool(name), kv_tokens=1_000) for name in ("p", "q"))
    scheduler = two_pools(policy=replace(TWO_POOLS, pools=pools))

    assert asked(scheduler, "m", "a") == ["a"]
    assert asked(scheduler, "n", "b", "c") == ["b"]


def test_prompts_pending_for_one_model_delay_the_other() -> None:
    scheduler = two_pools()
    asked(scheduler, "m", "a", prompt=2_000)

    assert asked(scheduler, "n", "b") == []
    assert sent(scheduler.handle(first_token("a"), at(1))) == ["b"]


@pytest.mark.parametrize("reports", [("e1", "e2"), ("e2", "e1"), ("e1",)])
def test_own_requests_of_another_pool_are_not_load_from_other_clients(reports: tuple[str, ...]) -> None:
    scheduler = two_pools(places=10)
    asked(scheduler, "m", *"abcd")

    commands_for(scheduler, at(1), *(measured(name, 4) for name in reports))

    assert asked(scheduler, "n", *"efghij", now=at(1)) == list("efghij")


@pytest.mark.parametrize("reports", [("e1", "e2"), ("e2", "e1")])
def test_load_from_other_clients_counts_once(reports: tuple[str, ...]) -> None:
    scheduler = two_pools(places=10)

    commands_for(scheduler, at(1), *(measured(name, 5) for name in reports))

    assert len(asked(scheduler, "m", *"abcdefgh", now=at(1))) == 10 - (5 - 2)


def test_load_from_other_clients_is_counted_while_the_first_pool_is_not_ready() -> None:
    scheduler = two_pools(places=10)
    commands_for(scheduler, at(1), unreadied("e1"), measured("e2", 5))

    assert len(asked(scheduler, "n", *"abcdefgh", now=at(1))) == 10 - (5 - 2)


def test_sequence_limit_is_learned_once_and_holds_for_all_pools() -> None:
    scheduler = two_pools(places=64)
    asked(scheduler, "m", *(f"m{number}" for number in range(12)))
    asked(scheduler, "n", *(f"n{number}" for number in range(12)))
    # Each scrape is reported for both endpoints, but three scrapes are not enough to learn from.
    for moment in range(3):
        commands_for(
            scheduler, at(1 + moment), *(measured(name, 8, waiting=16, kv_percent=10) for name in ("e1", "e2"))
        )
    assert endpoint_summary(scheduler, "e2").sequences_max is None

    commands_for(scheduler, at(5), *(measured(name, 8, waiting=16, kv_percent=10) for name in ("e1", "e2")))

    assert [endpoint_summary(scheduler, name).sequences_max for name in ("e1", "e2")] == [8, 8]
    assert asked(scheduler, "n", "more", now=at(6)) == []


def test_restart_of_one_model_keeps_the_learned_limit_of_the_engine() -> None:
    scheduler = two_pools(places=64)
    asked(scheduler, "m", *(f"m{number}" for number in range(24)))
    for moment in range(4):
        commands_for(scheduler, at(1 + moment), measured("e1", 8, waiting=16, kv_percent=10))

    commands_for(scheduler, at(6), unreadied("e2"))
    assert endpoint_summary(scheduler, "e1").sequences_max == 8

    commands_for(scheduler, at(7), unreadied("e1"))
    assert endpoint_summary(scheduler, "e1").sequences_max is None


def test_engine_is_counted_once_in_the_time_that_serves_the_queue() -> None:
    fleet = two_pools()._state.fleet
    alone = a_scheduler(an_endpoint("e1", places=4), policy=ONE_POOL)._state.fleet
    apart = a_scheduler(an_endpoint("e1"), an_endpoint("e2", pool="q"), policy=TWO_POOLS)._state.fleet
    pools = tuple(each.name for each in TWO_POOLS.pools)

    assert fleet.service_rate(pools, long=False) == alone.service_rate(pools[:1], long=False)
    assert apart.service_rate(pools, long=False) == 2 * alone.service_rate(pools[:1], long=False)


def test_pool_without_live_endpoints_adds_nothing_to_the_time_that_serves_the_queue() -> None:
    scheduler = two_pools()
    commands_for(scheduler, at(1), unreadied("e2"))
    fleet = scheduler._state.fleet

    assert fleet.service_rate((fleet.pools["p"].endpoints["e1"].pool,), long=False) == 1_000


def test_engine_on_a_configured_device_shares_both() -> None:
    """Two engines on one device with three slots; one of them stands in two pools."""
    shared = [replace(on("x", name, pool=pool, places=3), device="gpu") for name, pool in (("e1", "p"), ("e2", "q"))]
    alone = replace(an_endpoint("e3", pool="q", places=3), device="gpu")
    scheduler = a_scheduler(*shared, alone, policy=TWO_POOLS)
    asked(scheduler, "m", "a", "b")
    records = scheduler._state.fleet.endpoints
    assert [each.engine_load.in_flight for each in records.values()] == [2, 2, 0]

    assert asked(scheduler, "n", "c", "d") == ["c"]
    assert {each.device_load.in_flight for each in records.values()} == {3}

    commands_for(scheduler, at(1), leaving("e2"), completed("a"), completed("b"), completed("c"))
    assert records[EndpointId("e1")].engine_load.in_flight <= 1


# Joining and leaving


def test_pool_that_leaves_gives_its_slots_to_the_other() -> None:
    scheduler = two_pools(places=2)
    asked(scheduler, "n", "a")
    commands_for(scheduler, at(1), leaving("e2"))
    assert asked(scheduler, "m", "b", "c", now=at(1)) == ["b"]

    assert sent(scheduler.handle(completed("a"), at(2))) == ["c"]


def test_endpoint_that_moves_to_its_own_engine_no_longer_shares_slots() -> None:
    scheduler = two_pools(places=1)
    asked(scheduler, "m", "a")
    assert asked(scheduler, "n", "b") == []

    moved = commands_for(scheduler, at(1), *(EndpointJoined(on("", *each)) for each in (("e1",),)))
    moved += commands_for(scheduler, at(1), EndpointJoined(replace(on("", "e2", pool="q"), in_flight_max=1)))

    assert sent(moved) == ["b"]


def test_busy_endpoint_can_join_an_engine_and_leave_it() -> None:
    """The attempts of both endpoints end on the clocks on which they started."""
    first, second = on("", "e1", places=2), on("", "e2", pool="q", places=2)
    scheduler = a_scheduler(first, second, policy=TWO_POOLS)
    asked(scheduler, "m", "a")
    asked(scheduler, "n", "b")
    commands_for(
        scheduler, at(1), EndpointJoined(replace(first, engine="x")), EndpointJoined(replace(second, engine="x"))
    )
    assert asked(scheduler, "m", "c", now=at(2)) == []
    commands_for(scheduler, at(3), completed("b"))
    commands_for(scheduler, at(4), EndpointJoined(second), EndpointJoined(first), completed("a"), completed("c"))

    times = scheduler.pop_endpoint_times(at(5))

    assert sum(each.billed_ns for each in times) <= sum(each.total_ns for each in times)
    assert [endpoint_summary(scheduler, name).in_flight for name in ("e1", "e2")] == [0, 0]


def test_idle_time_before_an_endpoint_joins_an_engine_is_kept() -> None:
    first, second = on("", "e1"), on("", "e2", pool="q")
    scheduler = a_scheduler(first, second, policy=TWO_POOLS)
    commands_for(scheduler, at(1), *(EndpointJoined(replace(each, engine="x")) for each in (first, second)))

    assert {each.endpoint_id: each.idle_ns for each in scheduler.pop_endpoint_times(at(3))} == {
        "e1": duration(3),
        "e2": duration(1),
    }


# Health and drain


def test_engine_that_refuses_connections_is_ejected_in_all_its_pools() -> None:
    scheduler = two_pools()
    asked(scheduler, "m", "a")
    broken = [failed("a", attempt, fault=Fault.CONNECTION) for attempt in (1, 2, 3)]

    commands = [each for moment, event in enumerate(broken) for each in scheduler.handle(event, at(1 + moment))]
    commands += commands_for(scheduler, at(5), arrived("z", model="m"), failed("z", fault=Fault.CONNECTION))
    commands += commands_for(scheduler, at(6), arrived("y", model="m"), failed("y", fault=Fault.CONNECTION))

    assert {each.endpoint_id for each in commands if isinstance(each, Eject)} == {"e1", "e2"}
    assert endpoint_summary(scheduler, "e2").state is EndpointState.EJECTED
    assert endpoint_summary(scheduler, "e2").trouble is EndpointProblem.UNREACHABLE


def test_model_that_fails_is_ejected_in_its_own_pool_only() -> None:
    scheduler = two_pools()
    for moment in range(6):
        name = f"r{moment}"
        commands_for(scheduler, at(moment), arrived(name, model="m"), failed(name, fault=Fault.UNAVAILABLE))

    assert endpoint_summary(scheduler, "e1").state is EndpointState.EJECTED
    assert endpoint_summary(scheduler, "e2").state is EndpointState.READY


def test_failing_probe_does_not_eject_an_engine_that_serves_another_pool() -> None:
    scheduler = two_pools()
    asked(scheduler, "m", "a")
    commands_for(scheduler, at(1), *(probed(name, EndpointProblem.UNRESPONSIVE) for name in ("e1", "e2")))
    commands_for(scheduler, at(9), first_token("a"), completed("a"))

    assert commands_for(scheduler, at(12), TimerFired()) == []
    ejected = commands_for(scheduler, at(19.5), TimerFired())
    assert {each.endpoint_id for each in ejected if isinstance(each, Eject)} == {"e1", "e2"}


def test_drain_of_one_endpoint_drains_its_engine() -> None:
    scheduler = two_pools()
    drain = DrainEndpoint(EndpointId("e1"), at(100))
    commands_for(scheduler, at(1), policy_changed(replace(TWO_POOLS, overrides=(drain,))))

    assert asked(scheduler, "n", "a", now=at(2)) == []
    assert [endpoint_summary(scheduler, name).drained for name in ("e1", "e2")] == [True, True]


@pytest.mark.parametrize(("moved", "drained"), [("e1", [True, False]), ("e2", [True, False])])
@pytest.mark.parametrize("engine", ["", "y"])
def test_drain_does_not_follow_an_endpoint_to_another_engine(moved: str, drained: list[bool], engine: str) -> None:
    scheduler = two_pools()
    drain = DrainEndpoint(EndpointId("e1"), at(100))
    commands_for(scheduler, at(1), policy_changed(replace(TWO_POOLS, overrides=(drain,))))

    pool = "p" if moved == "e1" else "q"
    commands_for(scheduler, at(2), EndpointJoined(on(engine, moved, pool=pool)))

    assert [endpoint_summary(scheduler, name).drained for name in ("e1", "e2")] == drained
    assert asked(scheduler, "n", "a", now=at(3)) == ["a"]


# Time and cost


def test_time_of_an_engine_is_reported_once() -> None:
    scheduler = two_pools()
    asked(scheduler, "m", "a")
    asked(scheduler, "n", "b")
    commands_for(scheduler, at(2), first_token("a"), first_token("b"))
    commands_for(scheduler, at(4), completed("a"), completed("b"))

    times = scheduler.pop_endpoint_times(at(10))

    assert sum(each.total_ns for each in times) == duration(10)
    assert sum(each.idle_ns for each in times) == duration(6)
    billed = {each.endpoint_id: each.billed_ns for each in times}
    assert sum(billed.values()) == duration(4)
    assert min(billed["e1"], billed["e2"]) > 0


def test_time_of_a_cancelled_request_is_reported_under_its_own_pool() -> None:
    scheduler = two_pools()
    asked(scheduler, "n", "b")
    commands_for(scheduler, at(2), client_disconnected("b"))

    billed = {each.endpoint_id: each.billed_ns for each in scheduler.pop_endpoint_times(at(2))}
    # The last nanosecond may be a rounding remainder.
    assert sum(billed.values()) == duration(2)
    assert billed["e1"] <= 2


def test_time_that_was_billed_before_it_was_measured_is_reported_once() -> None:
    """The engine's time is collected while a request runs, so its own pool gets it later, in parts."""
    scheduler = two_pools()
    asked(scheduler, "n", "b")
    early = scheduler.pop_endpoint_times(at(3))
    commands_for(scheduler, at(4), completed("b"))
    asked(scheduler, "m", "a", now=at(4))
    late = [each for moment in (4, 4, 6, 8) for each in scheduler.pop_endpoint_times(at(moment))]

    assert {each.endpoint_id: each.billed_ns for each in early} == {"e1": duration(3)}
    assert sum(each.billed_ns for each in late if each.endpoint_id == "e2") == duration(4)
    assert sum(each.billed_ns for each in (*early, *late)) == sum(each.total_ns for each in (*early, *late))
    assert sum(each.total_ns for each in (*early, *late)) == duration(8)


def test_endpoint_that_joins_an_engine_twice_changes_nothing() -> None:
    scheduler = two_pools()
    commands_for(scheduler, at(1), leaving("e2"))
    commands_for(scheduler, at(1), EndpointJoined(on("y", "e1")), EndpointJoined(on("x", "e1")))

    assert _sums(scheduler.pop_endpoint_times(at(2))) == (duration(2), duration(2), 0)


def test_engine_is_not_ready_only_if_none_of_its_pools_is() -> None:
    scheduler = two_pools()
    commands_for(scheduler, at(1), unreadied("e1"))
    commands_for(scheduler, at(2), unreadied("e2"))
    commands_for(scheduler, at(3), readied("e1"))

    assert _sums(scheduler.pop_endpoint_times(at(4))) == (duration(4), duration(3), duration(1))


def test_time_continues_when_the_reporting_endpoint_leaves() -> None:
    scheduler = two_pools()
    commands_for(scheduler, at(1), leaving("e1"))

    times = scheduler.pop_endpoint_times(at(3))

    assert _sums(times) == (duration(3), duration(3), 0)
    assert {each.endpoint_id: each.total_ns for each in times} == {"e1": duration(1), "e2": duration(2)}


def _sums(times: tuple[EndpointTime, ...]) -> tuple[int, int, int]:
    return (
        sum(each.total_ns for each in times),
        sum(each.idle_ns for each in times),
        sum(each.unready_ns for each in times),
    )


# Fairness


@pytest.mark.parametrize("settings", [{"min_share_percent": 30}, {"reserve_percent": 50}])
def test_minimum_shares_and_reserved_slots_apply_to_the_pools_together(settings: dict[str, int]) -> None:
    """Tests in tests/properties compare any traffic."""
    orders: list[list[str]] = []
    classes = (INTERACTIVE, replace(BATCH, **settings))
    single = a_scheduler(an_endpoint("e1", places=2), policy=replace(ONE_POOL, classes=classes))
    for scheduler in (two_pools(places=2, policy=replace(TWO_POOLS, classes=classes)), single):
        order: list[str] = []
        for number in range(24):
            model, service_class = ("m", "n")[number % 2], ("interactive", "batch")[number % 3 == 0]
            event = arrived(f"r{number}", model=model, service_class=service_class, stream=False)
            order += sent(scheduler.handle(event, at(0)))
        for done in range(20):
            order += sent(scheduler.handle(completed(order[done], tokens=20), at(1 + done)))
        orders.append(order)

    assert orders[0] == orders[1]
    assert len(orders[0]) > 15


def test_long_queue_of_one_pool_does_not_starve_the_other() -> None:
    scheduler = two_pools(places=1)
    running = asked(scheduler, "m", *(f"m{number}" for number in range(40)))
    commands_for(scheduler, at(0), *(arrived(f"n{number}", "bolt", model="n") for number in range(40)))
    order = list(running)
    for moment in range(1, 20):
        running = sent(scheduler.handle(completed(order[-1], tokens=20), at(moment / 100)))
        order += running

    assert abs(sum(each.startswith("m") for each in order) - sum(each.startswith("n") for each in order)) <= 2


def test_higher_band_of_one_pool_goes_before_the_lower_band_of_the_other() -> None:
    scheduler = two_pools(places=1)
    asked(scheduler, "m", "a")
    commands_for(scheduler, at(0), *(arrived(f"b{each}", service_class="batch", model="m") for each in range(3)))
    commands_for(scheduler, at(0), arrived("urgent", model="n", service_class="interactive"))

    assert sent(scheduler.handle(completed("a"), at(1))) == ["urgent"]


def test_pools_that_share_only_some_engines_fill_all_of_them() -> None:
    endpoints = (on("x", "e1", places=1), on("x", "e2", pool="q", places=1), an_endpoint("own"))
    scheduler = a_scheduler(*endpoints, policy=TWO_POOLS)

    assert asked(scheduler, "m", "a", "b") == ["a", "b"]
    assert asked(scheduler, "n", "c") == []
    done = {
        each.request_id: each.endpoint_id
        for each in commands_for(scheduler, at(1), completed("a"), completed("b"))
        if isinstance(each, Dispatch)
    }
    assert done == {"c": "e2"}


def test_queued_requests_survive_a_change_of_the_groups() -> None:
    scheduler = two_pools(places=1)
    asked(scheduler, "m", "a", "b")
    asked(scheduler, "n", "c")

    commands = commands_for(scheduler, at(1), leaving("e2"), completed("a"))
    commands += commands_for(scheduler, at(2), EndpointJoined(on("x", "e3", pool="q", places=1)), readied("e3"))
    commands += commands_for(scheduler, at(3), completed("b"))

    assert sent(commands) == ["b", "c"]
