"""Endpoints that the router considers."""

from dataclasses import replace

from headgate.core.commands import Dispatch
from headgate.model.policy import HeadroomRules
from testing.builders import (
    a_class,
    a_policy,
    a_pool,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    first_token,
)


def test_request_is_admitted_without_queueing_if_any_pool_has_a_free_slot() -> None:
    nobody_waits = a_class(queue_length_max=0)
    policy = a_policy(classes=(nobody_waits,), pools=("p", "q"))
    scheduler = a_scheduler(an_endpoint("e1", pool="q"), policy=policy)

    [command] = commands_for(scheduler, at(0), arrived("a"))

    assert isinstance(command, Dispatch)
    assert command.endpoint_id == "e1"


def test_router_considers_only_a_few_endpoints_without_memory() -> None:
    # Each endpoint uses 7,000 of 10,000 KV tokens, so none has memory for another such prompt.
    small = replace(a_pool(), kv_tokens=10_000)
    policy = replace(a_policy(pools=(small,)), headroom=HeadroomRules(long_lane_percent=100))
    endpoints = [an_endpoint(f"e{number}", places=8) for number in range(12)]
    scheduler = a_scheduler(*endpoints, policy=policy)
    for number in range(12):
        commands_for(scheduler, at(0), arrived(f"r{number}", prompt_bytes=28_000), first_token(f"r{number}"))

    assert commands_for(scheduler, at(1), arrived("a", prompt_bytes=28_000)) == []
