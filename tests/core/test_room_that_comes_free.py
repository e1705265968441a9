"""A queued request is sent as soon as it fits, whatever has changed."""

from dataclasses import replace

from headgate.core.commands import Command, Dispatch
from headgate.core.events import EndpointJoined, EndpointMetricsReported, EndpointReady, TimerFired
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
    client_disconnected,
    commands_for,
    completed,
    duration,
    first_token,
    leaving,
)

LARGE = 4_000
"""Size of a 1,000-token prompt in bytes. Other prompts are 25 tokens long. Each response may have up to 400 tokens."""


def sent(commands: list[Command]) -> list[tuple[str, str]]:
    return [(each.request_id, each.endpoint_id) for each in commands if isinstance(each, Dispatch)]


def narrow(*, queue_wait: float = 30) -> Policy:
    """Returns a policy whose engines have memory for two short requests or one large request."""
    small = replace(a_pool("p"), kv_tokens=1_500)
    return a_policy(classes=(a_class("interactive", queue_wait=queue_wait),), pools=(small,))


def blocked(policy: Policy) -> Scheduler:
    """Returns a scheduler with a running request, a large request waiting for it and a short one behind that."""
    scheduler = a_scheduler(places=4, policy=policy)
    commands = commands_for(
        scheduler, at(0), arrived("runs"), first_token("runs"), arrived("large", prompt_bytes=LARGE)
    )
    commands += commands_for(scheduler, at(1), arrived("short"))
    assert sent(commands) == [("runs", "e1")]
    return scheduler


def test_request_is_sent_when_blocking_request_is_cancelled() -> None:
    scheduler = blocked(narrow())

    assert sent(commands_for(scheduler, at(2), client_disconnected("large"))) == [("short", "e1")]


def test_request_is_sent_when_blocking_request_expires() -> None:
    scheduler = blocked(narrow(queue_wait=5))

    assert sent(commands_for(scheduler, at(5), TimerFired())) == [("short", "e1")]


def test_request_is_sent_when_blocking_request_goes_to_other_pool() -> None:
    """The large request fits only in the second pool. After it is sent there, the short request fits in the first."""
    policy = a_policy(
        classes=(a_class("interactive", queue_wait=60),),
        pools=(replace(a_pool("p"), kv_tokens=1_500), a_pool("q")),
        models=(a_model("m", "p", "q"), a_model("only q", "q")),
    )
    scheduler = a_scheduler(an_endpoint("e1", places=4), an_endpoint("e2", pool="q"), policy=policy)
    commands_for(scheduler, at(0), arrived("runs at q", model="only q"), arrived("runs at p"), first_token("runs at p"))
    commands_for(scheduler, at(0), arrived("large", prompt_bytes=LARGE), arrived("short"))

    commands = commands_for(scheduler, at(1), completed("runs at q"))

    assert sent(commands) == [("large", "e2"), ("short", "e1")]


def test_request_is_sent_when_busy_endpoint_on_same_device_leaves() -> None:
    scheduler = a_scheduler(
        *(replace(an_endpoint(name, places=2), device="gpu") for name in ("e1", "e2")), policy=a_policy()
    )
    commands_for(scheduler, at(0), EndpointMetricsReported(EndpointId("e1"), running=9, waiting=0))
    assert sent(commands_for(scheduler, at(1), arrived("waits"))) == []

    assert sent(commands_for(scheduler, at(2), leaving("e1"))) == [("waits", "e2")]


def test_stale_endpoint_is_used_when_only_reporting_endpoint_leaves() -> None:
    policy = replace(a_policy(), routing=RoutingRules(metrics_stale_ns=duration(5)))
    scheduler = a_scheduler(an_endpoint("e1", places=5), an_endpoint("e2", places=5), policy=policy)
    commands_for(
        scheduler, at(0), *(EndpointMetricsReported(EndpointId(name), running=0, waiting=0) for name in ("e1", "e2"))
    )
    commands_for(scheduler, at(4), EndpointMetricsReported(EndpointId("e1"), running=0, waiting=0))
    commands_for(scheduler, at(5), TimerFired())
    commands_for(scheduler, at(5), leaving("e1"))

    assert sent(commands_for(scheduler, at(6), arrived("r1"))) == [("r1", "e2")]


def test_new_endpoint_gets_queued_requests() -> None:
    scheduler = blocked(narrow())

    commands = commands_for(scheduler, at(2), EndpointJoined(an_endpoint("e2")), EndpointReady(EndpointId("e2")))

    assert sent(commands) == [("large", "e2"), ("short", "e1")]
