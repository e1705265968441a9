"""Tests for pools split by prompt length."""

from itertools import pairwise

import pytest

from headgate.compose.simulation import build_scenario
from headgate.model.speed import EngineSpeed
from headgate.model.units import ClassName, Instant, PoolName, TenantId
from headgate.planning.length_split import LengthSplit, length_splits, with_length_split
from headgate.simulation.workload.arrival import Arrival
from tests.planning.builders import CHAT, settings_of

MAIN, LONG = PoolName("main"), PoolName("main-long")


def arrival(prompt: int) -> Arrival:
    return Arrival(Instant(0), prompt, 10, ClassName("interactive"), TenantId("a"))


def test_thresholds_leave_the_wanted_share_of_work_to_long_prompts() -> None:
    splits = length_splits([arrival(prompt) for prompt in range(1, 1_000)], EngineSpeed(), (0.1, 0.5))

    assert [each.long_work for each in splits] == pytest.approx([0.5, 0.1], abs=0.01)
    assert all(below.prompt_tokens < above.prompt_tokens for below, above in pairwise(splits))


def test_prompts_of_one_length_are_not_split() -> None:
    assert length_splits([arrival(500)] * 9, EngineSpeed()) == []


def test_scheduler_sends_long_prompts_to_the_long_pool() -> None:
    settings = settings_of(CHAT.replace("callers:", "classes: {interactive: {pools: [main]}}\ncallers:"))
    policy, engines = with_length_split(settings.policy, settings.engines, MAIN, LengthSplit(400, 0.25))
    main, long = policy.pools

    assert (main.prompt_tokens_max, long.name, long.prompt_tokens_min) == (400, LONG, 401)
    assert policy.models[0].pools == (MAIN, LONG)
    assert [each.pools for each in policy.classes if each.name == "interactive"] == [(MAIN, LONG)]
    assert [sum(each.pool == pool for each in engines) for pool in (MAIN, LONG)] == [75, 25]
    assert len({each.id for each in engines}) == 100


def test_scenario_of_the_test_has_prompts_on_both_sides() -> None:
    prompts = [each.prompt_tokens for each in build_scenario(settings_of(), 0).arrivals()]

    assert min(prompts) <= 400 < max(prompts)
