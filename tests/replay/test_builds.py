"""The compiled and the pure build make the same decisions.

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


CELL = "from testing.cell_world.world import World; World(11, told=print).run()"
"""Program that simulates a cell under faults and prints every step."""


@pytest.mark.process
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("world", WORLDS)
def test_both_builds_produce_the_same_commands(world: str, seed: int) -> None:
    outputs = outputs_of_both_builds("-m", "tests.replay.log", str(seed), str(EVENTS), world)

    assert outputs[0] == outputs[1]
    assert len(outputs[0].split()) == 2


@pytest.mark.process
def test_both_builds_simulate_the_same_cell() -> None:
    outputs = outputs_of_both_builds("-c", CELL)

    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) > 100


def outputs_of_both_builds(*arguments: str) -> list[str]:
    """Run Python with the build under test and with the pure build."""
    return [
        subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for environment in ({}, {"PYTHONPATH": str(SOURCES)})
    ]
