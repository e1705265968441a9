"""Long lane: which endpoints may process long prompts at the same time."""

from dataclasses import replace

import pytest

from headgate.core.commands import Command, Dispatch, End
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.policy import HeadroomRules, Policy
from headgate.model.units import PoolName
from testing.builders import (
    a_class,
    a_model,
    a_policy,
    a_pool,
    a_scheduler,
    aborted,
    an_endpoint,
    arrived,
    at,
    client_disconnected,
    commands_for,
    duration,
    first_token,
    leaving,
    unreadied,
)

LONG_BYTES = 4 * 32_000
FOUR = ("e1", "e2", "e3", "e4")


def with_endpoints(*names: str, policy: Policy | None = None) -> Scheduler:
    return a_scheduler(*(an_endpoint(name, places=8) for name in names), policy=policy)


def sent(commands: list[Command]) -> dict[str, str]:
    """Returns the endpoint of each request that was sent."""
    return {each.request_id: each.endpoint_id for each in commands if isinstance(each, Dispatch)}


def long_ones(scheduler: Scheduler, *names: str, tenant: str = "acme") -> dict[str, str]:
    return sent(commands_for(scheduler, at(0), *(arrived(name, tenant, prompt_bytes=LONG_BYTES) for name in names)))


def test_long_prompts_use_at_most_half_of_endpoints() -> None:
    scheduler = with_endpoints(*FOUR)

    assert long_ones(scheduler, "a", "b", "c") == {"a": "e1", "b": "e2"}


def test_other_endpoints_serve_short_prompts_from_same_tenant() -> None:
    scheduler = with_endpoints(*FOUR)
    long_ones(scheduler, "a", "b", "c")

    assert sent(commands_for(scheduler, at(1), arrived("short"), arrived("shorter"))) == {
        "short": "e3",
        "shorter": "e4",
    }


def test_next_long_prompt_is_sent_when_one_is_finished_or_aborted() -> None:
    scheduler = with_endpoints(*FOUR)
    long_ones(scheduler, "a", "b", "c", "d")

    assert sent(commands_for(scheduler, at(1), first_token("b"))) == {"c": "e3"}
    assert sent(commands_for(scheduler, at(2), client_disconnected("a"), aborted("a"))) == {"d": "e4"}


def test_single_endpoint_processes_one_long_prompt_at_a_time() -> None:
    scheduler = with_endpoints("e1")

    assert long_ones(scheduler, "a", "b") == {"a": "e1"}
    assert sent(commands_for(scheduler, at(1), first_token("a"))) == {"b": "e1"}


def test_long_lane_shrinks_with_fleet() -> None:
    scheduler = with_endpoints(*FOUR)
    commands_for(scheduler, at(0), unreadied("e3"), leaving("e4"))

    assert long_ones(scheduler, "a", "b") == {"a": "e1"}


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (25, 1), (75, 3), (100, 4)])
def test_long_percent_sets_the_size_of_the_long_lane(percent: int, expected: int) -> None:
    policy = replace(a_policy(), headroom=HeadroomRules(long_lane_percent=percent))
    scheduler = with_endpoints(*FOUR, policy=policy)

    assert len(long_ones(scheduler, "a", "b", "c", "d", "e")) == expected


def test_long_tokens_sets_the_minimum_size_of_a_long_prompt() -> None:
    policy = replace(a_policy(), headroom=HeadroomRules(long_prompt_tokens=40_000))
    scheduler = with_endpoints(*FOUR, policy=policy)

    assert len(long_ones(scheduler, "a", "b", "c", "d")) == 4


def test_queued_long_prompts_do_not_make_short_prompt_infeasible() -> None:
    hurried = replace(a_class(), ttft_ns=duration(8))
    scheduler = with_endpoints(*FOUR, policy=a_policy(classes=(hurried,)))
    long_ones(scheduler, *"abcdef")

    assert sent(commands_for(scheduler, at(0), arrived("short"))) == {"short": "e3"}


def test_long_prompt_is_rejected_if_long_lane_is_full_for_too_long() -> None:
    hurried = replace(a_class(), ttft_ns=duration(8))
    scheduler = with_endpoints(*FOUR, policy=a_policy(classes=(hurried,)))

    commands = commands_for(scheduler, at(0), *(arrived(f"r{number}", prompt_bytes=LONG_BYTES) for number in range(40)))

    refused = [each for each in commands if isinstance(each, End)]
    assert {each.outcome for each in refused} == {Outcome.DEADLINE_INFEASIBLE}
    assert 20 < len(refused) < 36


def test_estimated_waits_for_a_hosted_pool_do_not_assume_a_long_lane() -> None:
    """Long prompts wait in the same queue as others there, and may use all endpoints."""

    def answers(long_prompt_tokens: int) -> list[Command]:
        policy = a_policy(
            classes=(a_class("interactive", queue_wait=2),),
            pools=(replace(a_pool("p"), hosted=True), replace(a_pool("q"), hosted=True)),
            models=(a_model("m", "p", "q"),),
        )
        policy = replace(policy, headroom=HeadroomRules(long_prompt_tokens=long_prompt_tokens))
        endpoints = [an_endpoint(name, pool=pool) for name, pool in zip(FOUR, "ppqq", strict=True)]
        scheduler = a_scheduler(*endpoints, policy=policy)
        sizes = [LONG_BYTES, LONG_BYTES, 100] * 12
        return commands_for(scheduler, at(0), *(arrived(f"r{i}", prompt_bytes=b) for i, b in enumerate(sizes)))

    with_lane, without_lane = answers(8_000), answers(10**9)

    assert with_lane == without_lane
    assert {each.outcome for each in with_lane if isinstance(each, End)} == {Outcome.DEADLINE_INFEASIBLE}


def test_estimated_waits_for_own_and_hosted_pools_count_every_hosted_endpoint() -> None:
    policy = a_policy(pools=(a_pool("p"), replace(a_pool("q"), hosted=True)), models=(a_model("m", "p", "q"),))
    endpoints = [an_endpoint(name, pool=pool) for name, pool in zip(FOUR, "ppqq", strict=True)]
    fleet = a_scheduler(*endpoints, policy=policy)._state.fleet

    assert fleet.service_rate((PoolName("p"),), long=True) == fleet.service_rate((PoolName("p"),), long=False) // 2
    assert fleet.service_rate((PoolName("q"),), long=True) == fleet.service_rate((PoolName("q"),), long=False)
