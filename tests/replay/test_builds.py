"""The compiled and the pure build produce the same commands for the same events.

`just test-compiled` runs these tests on the compiled build. On the pure build, they compare two processes.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.replay.log import WORLDS

SOURCES = Path(__file__).parents[2] / "src"
EVENTS = 3_000


@pytest.mark.process
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("world", WORLDS)
def test_both_builds_produce_the_same_commands(world: str, seed: int) -> None:
    said = [fingerprints(seed, world, environment) for environment in ({}, {"PYTHONPATH": str(SOURCES)})]

    assert said[0] == said[1]


def fingerprints(seed: int, world: str, environment: dict[str, str]) -> list[str]:
    """Run the scheduler in another process and return the fingerprints of events and commands."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.replay.log", str(seed), str(EVENTS), world],
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
        text=True,
    )
    found = done.stdout.split()
    assert len(found) == 2
    return found
