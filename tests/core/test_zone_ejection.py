"""Ejection of all endpoints in a failing zone."""

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
    client_disconnected,
    commands_for,
    completed,
    duration,
    endpoint_summary,
    failed,
    leaving,
    readied,
)

RULES = HealthRules(consecutive_failures_max=1, ejection_ns=duration(10), zone_ejection_percent=50)
POLICY = replace(
    a_policy(pools=(a_pool("p"), a_pool("q")), models=(a_model("m", "p"), a_model("n", "q"))), health=RULES
)


def a_fleet(*endpoints: str, rules: HealthRules = RULES) -> Scheduler:
    """Returns a scheduler with endpoints given as pool/zone/name, each with a running request of the same name."""
    scheduler = a_scheduler(an_endpoint("none", places=0), policy=replace(POLICY, health=rules))
    commands_for(scheduler, at(0), leaving("none"))
    for each in endpoints:
        pool, zone, name = each.split("/")
        endpoint = replace(an_endpoint(name, pool=pool, places=1), zone=zone)
        commands_for(scheduler, at(0), EndpointJoined(endpoint), readied(name))
        commands_for(scheduler, at(0), arrived(name, model="m" if pool == "p" else "n"))
        assert endpoint_summary(scheduler, name).in_flight == 1
    return scheduler


def fail(scheduler: Scheduler, name: str, moment: float = 1) -> list[str]:
    """Fails a request and returns the ejected endpoints. Its client has disconnected, so it is not retried."""
    commands = commands_for(scheduler, at(moment), client_disconnected(name), failed(name))
    return [each.endpoint_id for each in commands if isinstance(each, Eject)]


def test_rest_of_zone_is_ejected_when_half_of_it_has_failed() -> None:
    scheduler = a_fleet("p/a/a1", "p/a/a2", "p/a/a3", "p/a/a4", "p/b/b1")

    assert fail(scheduler, "a1") == ["a1"]
    assert fail(scheduler, "a2") == ["a2", "a3", "a4"]
    assert endpoint_summary(scheduler, "b1").state is EndpointState.READY


def test_zone_ejection_reports_its_reason() -> None:
    scheduler = a_fleet("p/a/a1", "p/a/a2", "p/a/a3", "p/b/b1")
    fail(scheduler, "a1")
    commands = commands_for(scheduler, at(1), client_disconnected("a2"), failed("a2"))

    assert [each.reason for each in commands if isinstance(each, Eject)] == [
        "connection refused",
        'most endpoints in zone "a" are ejected',
    ]


def test_single_failure_in_small_zone_does_not_eject_zone() -> None:
    scheduler = a_fleet("p/a/a1", "p/a/a2", "p/b/b1")

    assert fail(scheduler, "a1") == ["a1"]


def test_failure_of_less_than_half_of_zone_does_not_eject_it() -> None:
    scheduler = a_fleet("p/a/a1", "p/a/a2", "p/a/a3", "p/a/a4", "p/a/a5", "p/b/b1")
    fail(scheduler, "a1")

    assert fail(scheduler, "a2") == ["a2"]


def test_endpoint_is_not_ejected_with_zone_if_its_pool_has_no_endpoint_elsewhere() -> None:
    scheduler = a_fleet("p/a/a1", "p/a/a2", "p/a/a3", "q/a/a4", "p/b/b1")
    fail(scheduler, "a1")

    assert fail(scheduler, "a2") == ["a2", "a3"]
    assert endpoint_summary(scheduler, "a4").state is EndpointState.READY


def test_endpoints_without_zone_are_ejected_individually() -> None:
    scheduler = a_fleet("p//e1", "p//e2", "p//e3", "p/b/b1")
    fail(scheduler, "e1")

    assert fail(scheduler, "e2") == ["e2"]


def test_leaving_endpoints_are_not_counted() -> None:
    scheduler = a_fleet("p/a/a1", "p/a/a2", "p/a/a3", "p/a/a4", "p/a/a5", "p/b/b1")
    fail(scheduler, "a1")
    commands_for(scheduler, at(1), leaving("a5"))

    assert fail(scheduler, "a2") == ["a2", "a3", "a4"]


def test_failing_half_of_zone_does_not_eject_healthy_half_again() -> None:
    scheduler = a_fleet("p/a/a1", "p/a/a2", "p/a/a3", "p/a/a4", "p/b/b1")
    fail(scheduler, "a1")
    assert fail(scheduler, "a2") == ["a2", "a3", "a4"]
    commands_for(scheduler, at(2), *(completed(name) for name in ("a3", "a4", "b1")))
    commands_for(scheduler, at(11), TimerFired())
    commands = commands_for(scheduler, at(11), *(arrived(f"r{number}") for number in range(5)))
    request_at = {each.endpoint_id: each.request_id for each in commands if isinstance(each, Dispatch)}
    commands_for(scheduler, at(12), completed(request_at["a3"]), completed(request_at["a4"]))
    assert fail(scheduler, request_at["a1"], 12) == ["a1"]

    assert fail(scheduler, request_at["a2"], 12) == ["a2"]
    assert endpoint_summary(scheduler, "a4").state is EndpointState.READY


def test_zone_is_not_ejected_if_only_other_endpoint_is_on_trial() -> None:
    scheduler = a_fleet("p/a/a1", "p/a/a2", "p/a/a3", "p/b/b1")
    fail(scheduler, "b1")
    commands_for(scheduler, at(11), TimerFired())
    assert endpoint_summary(scheduler, "b1").state is EndpointState.TRIAL
    fail(scheduler, "a1", 11)

    assert fail(scheduler, "a2", 11) == ["a2"]


def test_each_endpoint_in_ejected_zone_returns_on_trial() -> None:
    scheduler = a_fleet("p/a/a1", "p/a/a2", "p/a/a3", "p/b/b1")
    fail(scheduler, "a1")
    fail(scheduler, "a2")
    commands_for(scheduler, at(2), completed("a3"))
    commands_for(scheduler, at(11), TimerFired())

    assert [endpoint_summary(scheduler, name).state for name in ("a1", "a2", "a3")] == [EndpointState.TRIAL] * 3
