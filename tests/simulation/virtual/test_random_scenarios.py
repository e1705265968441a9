"""Does every property hold whatever happens? Scenarios drawn by chance, each checked event by event.

A failing one names its seed: `draw(SEED)` of random_scenarios.py makes it again.
"""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.simulation.virtual.scenario import Crash, Scenario
from tests.simulation.virtual.random_scenarios import CheckedScheduler, draw, fingerprint
from tests.simulation.virtual.scenes import run

AT_ONCE = 10
SEEDS, NIGHTLY_SEEDS = 30, 200


@pytest.mark.parametrize(
    "first",
    [
        *range(0, SEEDS, AT_ONCE),
        *(pytest.param(first, marks=pytest.mark.nightly) for first in range(SEEDS, NIGHTLY_SEEDS, AT_ONCE)),
    ],
)
def test_random_scenarios_keep_every_property(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        try:
            run_one(seed)
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken


def run_one(seed: int) -> None:
    scenario = draw(seed)
    checked = CheckedScheduler(scenario.policy)

    seen = run(replace(scenario, decider=lambda: checked))

    # Every request ended exactly once.
    assert sorted(each.number for each in seen.stories) == list(range(len(list(scenario.arrivals()))))
    assert all(each.outcome is not None for each in seen.stories)
    # Nothing is left behind: neither in the scheduler, nor at an engine but for the step that goes on.
    summary = checked.model.scheduler.summary()
    assert summary.requests == 0
    assert all(each.in_flight == 0 for each in summary.endpoints)
    # What was spent on requests is what engines worked, but for the steps in which attempts were cut off, and for what
    # is lost where a step's fixed cost is shared in whole picoseconds. Who left in the very step that a crash ends was
    # charged for what the engine did not do.
    assert seen.ending is not None
    worked = sum(each.worked_ps for each in seen.ending.engines)
    spent = sum(each.engine_ps for each in seen.stories)
    steps = sum(each.steps for each in seen.ending.engines)
    cut = sum(each.attempts - (each.outcome is Outcome.COMPLETED) for each in seen.stories)
    crashes = sum(isinstance(each, Crash) for each in scenario.faults)
    assert -crashes * longest_step_ps(scenario) <= worked - spent <= cut * longest_step_ps(scenario) + steps * 32


def longest_step_ps(scenario: Scenario) -> int:
    profiles = [each.profile for each in scenario.engines]
    return max(
        each.decode_ps(each.sequences_max, kv_tokens=each.kv_blocks * each.block_tokens)
        + each.prefill_ps(each.chunk_tokens, done=each.context_tokens)
        for each in profiles
    )


def test_the_scenarios_are_worth_running() -> None:
    """Together they end requests in every way that traffic can."""
    outcomes: Counter[Outcome | None] = Counter()
    for seed in range(40):
        outcomes.update(each.outcome for each in run(replace(draw(seed), decider=Scheduler)).stories)

    assert set(outcomes) >= {
        Outcome.COMPLETED,
        Outcome.CANCELLED,
        Outcome.QUEUE_FULL,
        Outcome.EXPIRED,
        Outcome.UNREACHABLE,
        Outcome.RATE_LIMITED,
        Outcome.ENGINE_FAILED,
        Outcome.ENGINE_SILENT,
        Outcome.ENGINE_REFUSED,
        Outcome.NO_ENDPOINTS,
        Outcome.RETRY_REFUSED,
    }


@pytest.mark.process
@pytest.mark.parametrize("hash_seed", ["0", "random"])
def test_the_hash_seed_changes_nothing(hash_seed: str) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "tests.simulation.virtual.random_scenarios", "7"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        check=True,
        text=True,
    ).stdout

    assert said.strip() == fingerprint(7)


def test_another_seed_is_another_run() -> None:
    assert fingerprint(7) != fingerprint(8)
