"""Which endpoints are looked at, and which not?"""

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
    first_token,
    told,
)


def test_who_need_not_wait_comes_in_whatever_the_queue_holds_and_wherever_there_is_room() -> None:
    nobody_waits = a_class(queue_length_max=0)
    policy = a_policy(classes=(nobody_waits,), pools=("p", "q"))
    scheduler = a_scheduler(an_endpoint("e1", pool="q"), policy=policy)

    [command] = told(scheduler, at(0), arrived("a"))

    assert isinstance(command, Dispatch)
    assert command.endpoint_id == "e1"


def test_of_many_endpoints_without_memory_for_it_only_a_few_are_looked_at() -> None:
    # Each holds 7,000 of 10,000 tokens, so whoever is looked at has no memory for as much again.
    small = replace(a_pool(), kv_tokens=10_000)
    policy = replace(a_policy(pools=(small,)), headroom=HeadroomRules(long_percent=100))
    endpoints = [an_endpoint(f"e{number}", places=8) for number in range(12)]
    scheduler = a_scheduler(*endpoints, policy=policy)
    for number in range(12):
        told(scheduler, at(0), arrived(f"r{number}", prompt_bytes=28_000), first_token(f"r{number}"))

    assert told(scheduler, at(1), arrived("a", prompt_bytes=28_000)) == []
