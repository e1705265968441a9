"""Is a zone that goes down left alone as a whole, and only where others serve?"""

from dataclasses import replace

from headgate.core.commands import Dispatch, Eject
from headgate.core.events import EndpointJoined, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import EndpointState
from headgate.model.policy import HealthRules
from testing.builders import (
    a_model,
    a_policy,
    a_pool,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    client_left,
    completed,
    endpoint_summary,
    failed,
    lasting,
    leaving,
    readied,
    told,
)

RULES = HealthRules(failures_max=1, eject_ns=lasting(10), zone_percent=50)
POLICY = replace(
    a_policy(pools=(a_pool("p"), a_pool("q")), models=(a_model("m", "p"), a_model("n", "q"))), health=RULES
)


def a_fleet(*endpoints: str, rules: HealthRules = RULES) -> Scheduler:
    """Each as pool/zone/name, with a request at every one of them that is called as it is."""
    scheduler = a_scheduler(an_endpoint("none", places=0), policy=replace(POLICY, health=rules))
    told(scheduler, at(0), leaving("none"))
    for each in endpoints:
        pool, zone, name = each.split("/")
        endpoint = replace(an_endpoint(name, pool=pool, places=1), zone=zone)
        told(scheduler, at(0), EndpointJoined(endpoint), readied(name))
        told(scheduler, at(0), arrived(name, model="m" if pool == "p" else "n"))
        assert endpoint_summary(scheduler, name).in_flight == 1
    return scheduler


def fail(scheduler: Scheduler, name: str, moment: float = 1) -> list[str]:
    """Who is ejected when the request there fails, whose client has left so that it is not tried again."""
    commands = told(scheduler, at(moment), client_left(name), failed(name))
    return [each.endpoint_id for each in commands if isinstance(each, Eject)]


def test_with_most_of_a_zone_the_rest_of_it_is_ejected() -> None:
    scheduler = a_fleet("p/a/a1", "p/a/a2", "p/a/a3", "p/a/a4", "p/b/b1")

    assert fail(scheduler, "a1") == ["a1"]
    assert fail(scheduler, "a2") == ["a2", "a3", "a4"]
    assert endpoint_summary(scheduler, "b1").state is EndpointState.READY


def test_it_is_said_why() -> None:
    scheduler = a_fleet("p/a/a1", "p/a/a2", "p/a/a3", "p/b/b1")
    fail(scheduler, "a1")
    commands = told(scheduler, at(1), client_left("a2"), failed("a2"))

    assert [each.reason for each in commands if isinstance(each, Eject)] == [
        "connection refused",
        'most endpoints of zone "a" have been ejected',
    ]


def test_one_failure_in_a_small_zone_is_no_zone() -> None:
    scheduler = a_fleet("p/a/a1", "p/a/a2", "p/b/b1")

    assert fail(scheduler, "a1") == ["a1"]


def test_fewer_than_most_are_no_zone() -> None:
    scheduler = a_fleet("p/a/a1", "p/a/a2", "p/a/a3", "p/a/a4", "p/a/a5", "p/b/b1")
    fail(scheduler, "a1")

    assert fail(scheduler, "a2") == ["a2"]


def test_whose_pool_nobody_serves_from_elsewhere_goes_on() -> None:
    scheduler = a_fleet("p/a/a1", "p/a/a2", "p/a/a3", "q/a/a4", "p/b/b1")
    fail(scheduler, "a1")

    assert fail(scheduler, "a2") == ["a2", "a3"]
    assert endpoint_summary(scheduler, "a4").state is EndpointState.READY


def test_endpoints_of_no_zone_fail_each_by_itself() -> None:
    scheduler = a_fleet("p//e1", "p//e2", "p//e3", "p/b/b1")
    fail(scheduler, "e1")

    assert fail(scheduler, "e2") == ["e2"]


def test_those_that_leave_are_not_judged() -> None:
    scheduler = a_fleet("p/a/a1", "p/a/a2", "p/a/a3", "p/a/a4", "p/a/a5", "p/b/b1")
    fail(scheduler, "a1")
    told(scheduler, at(1), leaving("a5"))

    assert fail(scheduler, "a2") == ["a2", "a3", "a4"]


def test_half_a_zone_that_stays_broken_does_not_take_the_sound_half_with_it_again() -> None:
    scheduler = a_fleet("p/a/a1", "p/a/a2", "p/a/a3", "p/a/a4", "p/b/b1")
    fail(scheduler, "a1")
    assert fail(scheduler, "a2") == ["a2", "a3", "a4"]
    told(scheduler, at(2), *(completed(name) for name in ("a3", "a4", "b1")))
    told(scheduler, at(11), TimerFired())
    commands = told(scheduler, at(11), *(arrived(f"r{number}") for number in range(5)))
    request_at = {each.endpoint_id: each.request_id for each in commands if isinstance(each, Dispatch)}
    told(scheduler, at(12), completed(request_at["a3"]), completed(request_at["a4"]))
    assert fail(scheduler, request_at["a1"], 12) == ["a1"]

    assert fail(scheduler, request_at["a2"], 12) == ["a2"]
    assert endpoint_summary(scheduler, "a4").state is EndpointState.READY


def test_one_that_is_on_trial_elsewhere_is_nobody_to_leave_it_to() -> None:
    scheduler = a_fleet("p/a/a1", "p/a/a2", "p/a/a3", "p/b/b1")
    fail(scheduler, "b1")
    told(scheduler, at(11), TimerFired())
    assert endpoint_summary(scheduler, "b1").state is EndpointState.TRIAL
    fail(scheduler, "a1", 11)

    assert fail(scheduler, "a2", 11) == ["a2"]


def test_each_comes_back_by_a_request_of_its_own() -> None:
    scheduler = a_fleet("p/a/a1", "p/a/a2", "p/a/a3", "p/b/b1")
    fail(scheduler, "a1")
    fail(scheduler, "a2")
    told(scheduler, at(2), completed("a3"))
    told(scheduler, at(11), TimerFired())

    assert [endpoint_summary(scheduler, name).state for name in ("a1", "a2", "a3")] == [EndpointState.TRIAL] * 3
