"""Tests for devices whose endpoints share capacity."""

from dataclasses import replace

import pytest

from headgate.core.commands import Command, Dispatch
from headgate.core.events import EndpointJoined, TimerFired
from headgate.core.routing.devices import DeviceRecord, Devices, InFlightLoad
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import Endpoint
from headgate.model.policy import Policy
from headgate.model.units import ClassName, EndpointId, Instant
from testing.builders import (
    a_class,
    a_model,
    a_policy,
    a_pool,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    duration,
    endpoint_summary,
    failed,
    first_token,
    leaving,
    progressed,
    readied,
)

TWO_MODELS = a_policy(pools=("p", "q"), models=(a_model("m", "p"), a_model("n", "q")))


def on(device: str, name: str, *, pool: str = "p", places: int = 4) -> Endpoint:
    return replace(an_endpoint(name, pool=pool, places=places), device=device)


def two_on_one(policy: Policy = TWO_MODELS, places: int = 4) -> Scheduler:
    """Returns a scheduler with one endpoint for model "m" and one for model "n", both on device "g"."""
    return a_scheduler(on("g", "e1", places=places), on("g", "e2", pool="q", places=places), policy=policy)


def sent(commands: list[Command]) -> list[str]:
    return [each.request_id for each in commands if isinstance(each, Dispatch)]


def asked(scheduler: Scheduler, model: str, *names: str, now: Instant | None = None, prompt: int = 25) -> list[str]:
    """Returns the requests that are sent immediately."""
    events = [arrived(name, model=model, prompt_bytes=4 * prompt) for name in names]
    return sent(commands_for(scheduler, now or at(0), *events))


# Scheduling


def test_slots_on_a_device_are_counted_together() -> None:
    scheduler = two_on_one(places=2)

    assert asked(scheduler, "m", "a") == ["a"]
    assert asked(scheduler, "n", "b", "c") == ["b"]
    assert asked(scheduler, "m", "d") == []


def test_slot_released_by_one_endpoint_is_free_for_the_other() -> None:
    scheduler = two_on_one(places=1)
    asked(scheduler, "m", "a")
    assert asked(scheduler, "n", "b") == []

    assert sent(scheduler.handle(completed("a"), at(1))) == ["b"]


def test_endpoints_without_a_device_do_not_share_slots() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2", pool="q"), policy=TWO_MODELS)

    assert asked(scheduler, "m", "a") == ["a"]
    assert asked(scheduler, "n", "b") == ["b"]


def test_pending_prefill_on_one_endpoint_blocks_the_other() -> None:
    scheduler = two_on_one()
    asked(scheduler, "m", "a", prompt=2_000)

    assert asked(scheduler, "n", "b") == []
    assert sent(scheduler.handle(first_token("a"), at(1))) == ["b"]


def test_kv_cache_is_reserved_across_the_device() -> None:
    pools = tuple(replace(a_pool(name), kv_tokens=1_000) for name in ("p", "q"))
    scheduler = two_on_one(replace(TWO_MODELS, pools=pools))

    assert asked(scheduler, "m", "a") == ["a"]
    assert asked(scheduler, "n", "b", "c") == ["b"]


def test_slow_stream_on_one_endpoint_blocks_the_other() -> None:
    policy = replace(TWO_MODELS, classes=(replace(a_class(), tpot_ns=duration(0.1)),))
    scheduler = two_on_one(policy)
    asked(scheduler, "m", "a")
    commands_for(scheduler, at(1), first_token("a"))
    commands_for(scheduler, at(3), progressed("a"))

    assert asked(scheduler, "n", "b", now=at(3)) == []
    assert sent(scheduler.handle(completed("a"), at(4))) == ["b"]


def test_less_loaded_device_is_selected() -> None:
    endpoints = [on("g", "e1"), on("g", "e2", pool="q"), on("h", "e3")]
    scheduler = a_scheduler(*endpoints, policy=TWO_MODELS)
    asked(scheduler, "n", "a")

    [command] = scheduler.handle(arrived("b", model="m"), at(0))

    assert isinstance(command, Dispatch)
    assert command.endpoint_id == "e3"


def test_reserved_class_slots_are_counted_across_the_device() -> None:
    classes = (replace(a_class(), reserve_percent=50), a_class("batch", band=1))
    scheduler = two_on_one(replace(TWO_MODELS, classes=classes), places=4)
    commands_for(scheduler, at(0), arrived("i"), first_token("i"))

    batch = [arrived(name, service_class="batch", model="n") for name in ("b1", "b2", "b3")]

    assert sent(commands_for(scheduler, at(0), *batch)) == ["b1", "b2"]


def test_endpoint_on_trial_is_tried_while_its_neighbour_is_busy() -> None:
    health = replace(TWO_MODELS.health, consecutive_failures_max=1, ejection_ns=duration(5))
    scheduler = two_on_one(replace(TWO_MODELS, health=health))
    asked(scheduler, "m", "a")
    scheduler.handle(failed("a"), at(0))
    asked(scheduler, "n", "b", "c")

    assert sent(scheduler.handle(TimerFired(), at(6))) == ["a"]
    assert asked(scheduler, "m", "d", now=at(6)) == []


def test_endpoint_summary_shows_only_its_own_requests() -> None:
    scheduler = two_on_one()
    asked(scheduler, "m", "a", "b")

    assert endpoint_summary(scheduler, "e1").in_flight == 2
    assert endpoint_summary(scheduler, "e2").in_flight == 0


def test_leaving_endpoint_releases_only_its_own_slots() -> None:
    scheduler = two_on_one(places=2)
    asked(scheduler, "m", "a")
    commands_for(scheduler, at(0), leaving("e1"))
    assert asked(scheduler, "n", "b", "c") == ["b"]

    assert sent(scheduler.handle(completed("a"), at(1))) == ["c"]
    assert len(scheduler._state.fleet._placement.devices) == 1


@pytest.mark.parametrize(("device", "devices"), [("h", 2), ("", 1)])
def test_endpoint_moving_to_another_device_frees_the_first(device: str, devices: int) -> None:
    scheduler = two_on_one(places=1)
    asked(scheduler, "m", "a")
    assert asked(scheduler, "n", "b") == []

    assert sent(scheduler.handle(EndpointJoined(on(device, "e1", places=1)), at(1))) == ["b"]
    assert len(scheduler._state.fleet._placement.devices) == devices


@pytest.mark.parametrize("device", ["", "g"])
def test_endpoint_joining_a_device_shares_its_load(device: str) -> None:
    scheduler = a_scheduler(on(device, "e1", places=1), policy=TWO_MODELS)
    asked(scheduler, "m", "a")
    commands_for(scheduler, at(0), EndpointJoined(on("g", "e2", pool="q", places=1)), readied("e2"))

    assert asked(scheduler, "n", "b") == ([] if device else ["b"])


# Device totals


def holding(in_flight: int, itl_ns: int) -> InFlightLoad:
    held = InFlightLoad()
    held.in_flight, held.pending_tokens, held.kv_used, held.kv_reserved = in_flight, 10, 20, 30
    held.itl_ns = itl_ns
    for _ in range(in_flight):
        held.count(ClassName("interactive"), 1)
    return held


def test_device_sums_its_endpoints_and_uses_the_slowest_time_per_token() -> None:
    devices = Devices()
    first, second = holding(1, 5), holding(2, 3)
    device = devices.join("g", EndpointId("e1"), first)
    assert devices.join("g", EndpointId("e2"), second) is device
    assert isinstance(device, DeviceRecord)

    device.sum_up()

    assert (device.in_flight, device.in_flight_by_class) == (3, {"interactive": 3})
    assert (device.pending_tokens, device.kv_used, device.kv_reserved, device.itl_ns) == (20, 40, 60, 5)


def test_device_is_forgotten_with_its_last_endpoint() -> None:
    devices = Devices()
    devices.join("g", EndpointId("e1"), InFlightLoad())
    devices.join("g", EndpointId("e2"), InFlightLoad())

    devices.leave("g", EndpointId("e1"))
    assert len(devices) == 1
    devices.leave("g", EndpointId("e2"))
    assert len(devices) == 0


def test_class_without_requests_in_flight_is_forgotten() -> None:
    held = holding(1, 0)

    held.count(ClassName("interactive"), -1)

    assert held.in_flight_by_class == {}
