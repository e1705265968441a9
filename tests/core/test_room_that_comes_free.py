"""Is whoever fits looked at as soon as it may go, whatever has changed?"""

from dataclasses import replace

from headgate.core.commands import Command, Dispatch
from headgate.core.events import EndpointJoined, EndpointMeasured, EndpointReadied, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.policy import Policy, RoutingRules
from headgate.model.units import EndpointId
from testing.builders import (
    a_class,
    a_model,
    a_policy,
    a_pool,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    client_left,
    completed,
    first_token,
    lasting,
    leaving,
    told,
)

LARGE = 4_000
"""Bytes of a prompt of a thousand tokens; the others have 25. Any answer may grow to 400."""


def sent(commands: list[Command]) -> list[tuple[str, str]]:
    return [(each.request_id, each.endpoint_id) for each in commands if isinstance(each, Dispatch)]


def narrow(*, queue_wait: float = 30) -> Policy:
    """Engines with room in memory for two short requests, or for one large one."""
    small = replace(a_pool("p"), kv_tokens=1_500)
    return a_policy(classes=(a_class("interactive", queue_wait=queue_wait),), pools=(small,))


def blocked(policy: Policy) -> Scheduler:
    """One runs, a large one waits for it to end, and a short one waits behind the large one."""
    scheduler = a_scheduler(places=4, policy=policy)
    commands = told(scheduler, at(0), arrived("runs"), first_token("runs"), arrived("large", prompt_bytes=LARGE))
    commands += told(scheduler, at(1), arrived("short"))
    assert sent(commands) == [("runs", "e1")]
    return scheduler


def test_whoever_stood_behind_one_that_left_goes_at_once() -> None:
    scheduler = blocked(narrow())

    assert sent(told(scheduler, at(2), client_left("large"))) == [("short", "e1")]


def test_whoever_stood_behind_one_that_expired_goes_at_once() -> None:
    scheduler = blocked(narrow(queue_wait=5))

    assert sent(told(scheduler, at(5), TimerFired())) == [("short", "e1")]


def test_whoever_stood_behind_one_that_went_elsewhere_goes_at_once() -> None:
    """The large one fits the second pool only; once it has gone there the short one behind it fits the first."""
    policy = a_policy(
        classes=(a_class("interactive", queue_wait=60),),
        pools=(replace(a_pool("p"), kv_tokens=1_500), a_pool("q")),
        models=(a_model("m", "p", "q"), a_model("only q", "q")),
    )
    scheduler = a_scheduler(an_endpoint("e1", places=4), an_endpoint("e2", pool="q"), policy=policy)
    told(scheduler, at(0), arrived("runs at q", model="only q"), arrived("runs at p"), first_token("runs at p"))
    told(scheduler, at(0), arrived("large", prompt_bytes=LARGE), arrived("short"))

    commands = told(scheduler, at(1), completed("runs at q"))

    assert sent(commands) == [("large", "e2"), ("short", "e1")]


def test_what_an_engine_had_is_forgotten_with_it_by_those_on_its_device() -> None:
    scheduler = a_scheduler(
        *(replace(an_endpoint(name, places=2), device="gpu") for name in ("e1", "e2")), policy=a_policy()
    )
    told(scheduler, at(0), EndpointMeasured(EndpointId("e1"), running=9, waiting=0))
    assert sent(told(scheduler, at(1), arrived("waits"))) == []

    assert sent(told(scheduler, at(2), leaving("e1"))) == [("waits", "e2")]


def test_silence_is_judged_anew_when_the_one_that_talks_has_gone() -> None:
    policy = replace(a_policy(), routing=RoutingRules(stale_ns=lasting(5)))
    scheduler = a_scheduler(an_endpoint("e1", places=5), an_endpoint("e2", places=5), policy=policy)
    told(scheduler, at(0), *(EndpointMeasured(EndpointId(name), running=0, waiting=0) for name in ("e1", "e2")))
    told(scheduler, at(4), EndpointMeasured(EndpointId("e1"), running=0, waiting=0))
    told(scheduler, at(5), TimerFired())
    told(scheduler, at(5), leaving("e1"))

    assert sent(told(scheduler, at(6), arrived("r1"))) == [("r1", "e2")]


def test_an_endpoint_that_comes_takes_whoever_waits() -> None:
    scheduler = blocked(narrow())

    commands = told(scheduler, at(2), EndpointJoined(an_endpoint("e2")), EndpointReadied(EndpointId("e2")))

    assert sent(commands) == [("large", "e2"), ("short", "e1")]
