"""Do endpoints on one device share its capacity?"""

from dataclasses import replace

import pytest

from headgate.core.commands import Command, Dispatch
from headgate.core.events import EndpointJoined, TimerFired
from headgate.core.routing.devices import DeviceRecord, Devices, Held
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
    completed,
    endpoint_summary,
    failed,
    first_token,
    lasting,
    leaving,
    progressed,
    readied,
    told,
)

TWO_MODELS = a_policy(pools=("p", "q"), models=(a_model("m", "p"), a_model("n", "q")))


def on(device: str, name: str, *, pool: str = "p", places: int = 4) -> Endpoint:
    return replace(an_endpoint(name, pool=pool, places=places), device=device)


def two_on_one(policy: Policy = TWO_MODELS, places: int = 4) -> Scheduler:
    """One endpoint for the model "m" and one for "n", both on the GPU "g"."""
    return a_scheduler(on("g", "e1", places=places), on("g", "e2", pool="q", places=places), policy=policy)


def sent(commands: list[Command]) -> list[str]:
    return [each.request_id for each in commands if isinstance(each, Dispatch)]


def asked(scheduler: Scheduler, model: str, *names: str, now: Instant | None = None, prompt: int = 25) -> list[str]:
    """Which of these go at once."""
    events = [arrived(name, model=model, prompt_bytes=4 * prompt) for name in names]
    return sent(told(scheduler, now or at(0), *events))


# Through the scheduler


def test_places_of_a_device_are_counted_together() -> None:
    scheduler = two_on_one(places=2)

    assert asked(scheduler, "m", "a") == ["a"]
    assert asked(scheduler, "n", "b", "c") == ["b"]
    assert asked(scheduler, "m", "d") == []


def test_a_place_that_is_given_back_at_one_is_free_at_the_other() -> None:
    scheduler = two_on_one(places=1)
    asked(scheduler, "m", "a")
    assert asked(scheduler, "n", "b") == []

    assert sent(scheduler.handle(completed("a"), at(1))) == ["b"]


def test_who_names_no_device_shares_with_nobody() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2", pool="q"), policy=TWO_MODELS)

    assert asked(scheduler, "m", "a") == ["a"]
    assert asked(scheduler, "n", "b") == ["b"]


def test_prompts_that_are_pending_at_one_keep_the_other_from_taking_more() -> None:
    scheduler = two_on_one()
    asked(scheduler, "m", "a", prompt=2_000)

    assert asked(scheduler, "n", "b") == []
    assert sent(scheduler.handle(first_token("a"), at(1))) == ["b"]


def test_the_kv_cache_is_promised_for_all_of_a_device_together() -> None:
    pools = tuple(replace(a_pool(name), kv_tokens=1_000) for name in ("p", "q"))
    scheduler = two_on_one(replace(TWO_MODELS, pools=pools))

    assert asked(scheduler, "m", "a") == ["a"]
    assert asked(scheduler, "n", "b", "c") == ["b"]


def test_a_stream_that_is_slow_at_one_keeps_the_other_from_taking_more() -> None:
    policy = replace(TWO_MODELS, classes=(replace(a_class(), tpot_ns=lasting(0.1)),))
    scheduler = two_on_one(policy)
    asked(scheduler, "m", "a")
    told(scheduler, at(1), first_token("a"))
    told(scheduler, at(3), progressed("a"))

    assert asked(scheduler, "n", "b", now=at(3)) == []
    assert sent(scheduler.handle(completed("a"), at(4))) == ["b"]


def test_of_two_devices_the_one_with_less_to_do_is_taken() -> None:
    endpoints = [on("g", "e1"), on("g", "e2", pool="q"), on("h", "e3")]
    scheduler = a_scheduler(*endpoints, policy=TWO_MODELS)
    asked(scheduler, "n", "a")

    [command] = scheduler.handle(arrived("b", model="m"), at(0))

    assert isinstance(command, Dispatch)
    assert command.endpoint_id == "e3"


def test_places_kept_for_a_class_are_counted_over_the_device() -> None:
    classes = (replace(a_class(), reserve_percent=50), a_class("batch", band=1))
    scheduler = two_on_one(replace(TWO_MODELS, classes=classes), places=4)
    told(scheduler, at(0), arrived("i"), first_token("i"))

    batch = [arrived(name, service_class="batch", model="n") for name in ("b1", "b2", "b3")]

    assert sent(told(scheduler, at(0), *batch)) == ["b1", "b2"]


def test_an_endpoint_on_trial_is_tried_while_its_neighbour_is_busy() -> None:
    health = replace(TWO_MODELS.health, failures_max=1, eject_ns=lasting(5))
    scheduler = two_on_one(replace(TWO_MODELS, health=health))
    asked(scheduler, "m", "a")
    scheduler.handle(failed("a"), at(0))
    asked(scheduler, "n", "b", "c")

    assert sent(scheduler.handle(TimerFired(), at(6))) == ["a"]
    assert asked(scheduler, "m", "d", now=at(6)) == []


def test_what_it_holds_itself_is_what_an_endpoint_is_said_to_hold() -> None:
    scheduler = two_on_one()
    asked(scheduler, "m", "a", "b")

    assert endpoint_summary(scheduler, "e1").in_flight == 2
    assert endpoint_summary(scheduler, "e2").in_flight == 0


def test_who_leaves_takes_along_only_what_it_held() -> None:
    scheduler = two_on_one(places=2)
    asked(scheduler, "m", "a")
    told(scheduler, at(0), leaving("e1"))
    assert asked(scheduler, "n", "b", "c") == ["b"]

    assert sent(scheduler.handle(completed("a"), at(1))) == ["c"]
    assert len(scheduler._state.fleet._placement.devices) == 1


@pytest.mark.parametrize(("device", "devices"), [("h", 2), ("", 1)])
def test_an_endpoint_that_is_said_to_be_on_another_device_frees_the_first(device: str, devices: int) -> None:
    scheduler = two_on_one(places=1)
    asked(scheduler, "m", "a")
    assert asked(scheduler, "n", "b") == []

    assert sent(scheduler.handle(EndpointJoined(on(device, "e1", places=1)), at(1))) == ["b"]
    assert len(scheduler._state.fleet._placement.devices) == devices


@pytest.mark.parametrize("device", ["", "g"])
def test_an_endpoint_that_joins_a_busy_device_finds_it_busy(device: str) -> None:
    scheduler = a_scheduler(on(device, "e1", places=1), policy=TWO_MODELS)
    asked(scheduler, "m", "a")
    told(scheduler, at(0), EndpointJoined(on("g", "e2", pool="q", places=1)), readied("e2"))

    assert asked(scheduler, "n", "b") == ([] if device else ["b"])


# The sums


def holding(in_flight: int, itl_ns: int) -> Held:
    held = Held()
    held.in_flight, held.pending_tokens, held.kv_used, held.kv_reserved = in_flight, 10, 20, 30
    held.itl_ns = itl_ns
    for _ in range(in_flight):
        held.count(ClassName("interactive"), 1)
    return held


def test_a_device_holds_what_its_endpoints_hold_and_is_as_slow_as_the_slowest() -> None:
    devices = Devices()
    first, second = holding(1, 5), holding(2, 3)
    device = devices.join("g", EndpointId("e1"), first)
    assert devices.join("g", EndpointId("e2"), second) is device
    assert isinstance(device, DeviceRecord)

    device.sum_up()

    assert (device.in_flight, device.in_flight_of) == (3, {"interactive": 3})
    assert (device.pending_tokens, device.kv_used, device.kv_reserved, device.itl_ns) == (20, 40, 60, 5)


def test_a_device_is_forgotten_with_its_last_endpoint() -> None:
    devices = Devices()
    devices.join("g", EndpointId("e1"), Held())
    devices.join("g", EndpointId("e2"), Held())

    devices.leave("g", EndpointId("e1"))
    assert len(devices) == 1
    devices.leave("g", EndpointId("e2"))
    assert len(devices) == 0


def test_a_class_of_which_nothing_is_in_flight_is_not_remembered() -> None:
    held = holding(1, 0)

    held.count(ClassName("interactive"), -1)

    assert held.in_flight_of == {}
