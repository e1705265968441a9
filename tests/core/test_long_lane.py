"""How many long prompts are computed at the same time?"""

from dataclasses import replace

import pytest

from headgate.core.commands import Command, Dispatch, End
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.policy import HeadroomRules, Policy
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    aborted,
    an_endpoint,
    arrived,
    at,
    client_left,
    first_token,
    lasting,
    leaving,
    told,
    unreadied,
)

LONG_BYTES = 4 * 32_000
FOUR = ("e1", "e2", "e3", "e4")


def with_endpoints(*names: str, policy: Policy | None = None) -> Scheduler:
    return a_scheduler(*(an_endpoint(name, places=8) for name in names), policy=policy)


def sent(commands: list[Command]) -> dict[str, str]:
    """Who was sent where."""
    return {each.request_id: each.endpoint_id for each in commands if isinstance(each, Dispatch)}


def long_ones(scheduler: Scheduler, *names: str, tenant: str = "acme") -> dict[str, str]:
    return sent(told(scheduler, at(0), *(arrived(name, tenant, prompt_bytes=LONG_BYTES) for name in names)))


def test_long_prompts_are_computed_at_half_of_the_endpoints_at_most() -> None:
    scheduler = with_endpoints(*FOUR)

    assert long_ones(scheduler, "a", "b", "c") == {"a": "e1", "b": "e2"}


def test_the_others_are_for_short_ones_even_of_the_same_tenant() -> None:
    scheduler = with_endpoints(*FOUR)
    long_ones(scheduler, "a", "b", "c")

    assert sent(told(scheduler, at(1), arrived("short"), arrived("shorter"))) == {"short": "e3", "shorter": "e4"}


def test_when_one_has_been_computed_the_next_goes() -> None:
    scheduler = with_endpoints(*FOUR)
    long_ones(scheduler, "a", "b", "c", "d")

    assert sent(told(scheduler, at(1), first_token("b"))) == {"c": "e3"}
    assert sent(told(scheduler, at(2), client_left("a"), aborted("a"))) == {"d": "e4"}


def test_one_endpoint_takes_long_prompts_one_at_a_time() -> None:
    scheduler = with_endpoints("e1")

    assert long_ones(scheduler, "a", "b") == {"a": "e1"}
    assert sent(told(scheduler, at(1), first_token("a"))) == {"b": "e1"}


def test_a_lane_grows_narrower_with_the_fleet() -> None:
    scheduler = with_endpoints(*FOUR)
    told(scheduler, at(0), unreadied("e3"), leaving("e4"))

    assert long_ones(scheduler, "a", "b") == {"a": "e1"}


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (25, 1), (75, 3), (100, 4)])
def test_how_wide_it_is_can_be_chosen(percent: int, expected: int) -> None:
    policy = replace(a_policy(), headroom=HeadroomRules(long_percent=percent))
    scheduler = with_endpoints(*FOUR, policy=policy)

    assert len(long_ones(scheduler, "a", "b", "c", "d", "e")) == expected


def test_so_can_what_is_long() -> None:
    policy = replace(a_policy(), headroom=HeadroomRules(long_tokens=40_000))
    scheduler = with_endpoints(*FOUR, policy=policy)

    assert len(long_ones(scheduler, "a", "b", "c", "d")) == 4


def test_what_waits_for_the_lane_is_no_reason_to_refuse_a_short_one() -> None:
    hurried = replace(a_class(), ttft_ns=lasting(8))
    scheduler = with_endpoints(*FOUR, policy=a_policy(classes=(hurried,)))
    long_ones(scheduler, *"abcdef")

    assert sent(told(scheduler, at(0), arrived("short"))) == {"short": "e3"}


def test_a_long_one_is_refused_when_those_before_it_keep_the_lane_for_too_long() -> None:
    hurried = replace(a_class(), ttft_ns=lasting(8))
    scheduler = with_endpoints(*FOUR, policy=a_policy(classes=(hurried,)))

    commands = told(scheduler, at(0), *(arrived(f"r{number}", prompt_bytes=LONG_BYTES) for number in range(40)))

    refused = [each for each in commands if isinstance(each, End)]
    assert {each.outcome for each in refused} == {Outcome.UNREACHABLE}
    assert 20 < len(refused) < 36
