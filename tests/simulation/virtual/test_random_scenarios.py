"""Property tests with random scenarios, each checked after every event.

A failure includes its seed. `draw(SEED)` in random_scenarios.py rebuilds the scenario.
"""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.simulation.options import Crash
from headgate.simulation.virtual.scenario import Scenario
from testing.builds import IS_COMPILED, NEEDS_PURE_BUILD
from tests.simulation.virtual.random_scenarios import CheckedScheduler, draw, fingerprint
from tests.simulation.virtual.scenes import run

AT_ONCE = 10
SEEDS, NIGHTLY_SEEDS = 10, 200


@pytest.mark.skipif(IS_COMPILED, reason=NEEDS_PURE_BUILD)
@pytest.mark.parametrize(
    "first",
    [
        *range(0, SEEDS, AT_ONCE),
        *(pytest.param(first, marks=pytest.mark.nightly) for first in range(SEEDS, NIGHTLY_SEEDS, AT_ONCE)),
    ],
)
def test_random_scenarios_satisfy_every_property(first: int) -> None:
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
    # The scheduler has no requests left, and no endpoint has a request in flight.
    summary = checked.model.scheduler.summary()
    assert summary.requests == 0
    assert all(each.in_flight == 0 for each in summary.endpoints)
    # The time spent on requests equals the engine work, with three exceptions. Steps in which attempts were aborted are
    # not charged. Dividing a step's fixed cost into whole picoseconds loses a remainder. A request cancelled during a
    # step that was cut short by a crash was charged for work that the engine did not finish.
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
        + each.prefill_ps(each.chunk_tokens, computed=each.context_tokens)
        for each in profiles
    )


def test_random_scenarios_cover_the_outcomes() -> None:
    """Together, the scenarios produce every outcome that traffic can cause."""
    outcomes: Counter[Outcome | None] = Counter()
    for seed in range(40):
        outcomes.update(each.outcome for each in run(replace(draw(seed), decider=Scheduler)).stories)

    assert set(outcomes) >= {
        Outcome.COMPLETED,
        Outcome.CANCELLED,
        Outcome.QUEUE_FULL,
        Outcome.QUEUE_TIMEOUT,
        Outcome.DEADLINE_INFEASIBLE,
        Outcome.RATE_LIMITED,
        Outcome.ENGINE_ERROR,
        Outcome.ENGINE_TIMEOUT,
        Outcome.ENGINE_REJECTED,
        Outcome.NO_ENDPOINTS,
        Outcome.RETRY_BUDGET_EXHAUSTED,
    }


@pytest.mark.skipif(IS_COMPILED, reason=NEEDS_PURE_BUILD)
@pytest.mark.process
@pytest.mark.parametrize("hash_seed", ["0", "random"])
def test_run_does_not_depend_on_the_hash_seed(hash_seed: str) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "tests.simulation.virtual.random_scenarios", "7"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        check=True,
        text=True,
    ).stdout

    assert said.strip() == fingerprint(7)


@pytest.mark.skipif(IS_COMPILED, reason=NEEDS_PURE_BUILD)
def test_different_seed_produces_a_different_run() -> None:
    assert fingerprint(7) != fingerprint(8)
