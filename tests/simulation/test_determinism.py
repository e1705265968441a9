"""Test that the same workload produces the same run in every process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import hashlib
from dataclasses import replace
from random import Random
from headgate.model.units import Instant, RequestId
from headgate.simulation.engine.loop import SimulatedEngine
from headgate.model.engine_profile import TINY
from headgate.simulation.engine.sequence import EngineRequest

profile = replace(TINY, kv_blocks=256)
chance, engine, seen, now = Random(7), SimulatedEngine(profile), hashlib.sha256(), 0
for number in range(500):
    now += chance.randrange(4_000_000)
    names = tuple(range(chance.randrange(20)))
    prompt, output = 16 * len(names) + 1 + chance.randrange(400), chance.randrange(300)
    engine.add(EngineRequest(RequestId(f"r{number}"), prompt, output, names), Instant(now))
    if number % 7 == 0:
        engine.cancel(RequestId(f"r{chance.randrange(number + 1)}"), Instant(now))
    seen.update(repr(engine.advance(Instant(now))).encode())
while (instant := engine.next_instant()) is not None:
    seen.update(repr(engine.advance(instant)).encode())
print(seen.hexdigest(), engine.state())
"""


def run(hash_seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=Path.cwd(), capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.process
def test_run_does_not_depend_on_the_hash_seed() -> None:
    first = run("1")

    assert run("2") == first
    # The run includes preemptions and prefix cache hits.
    assert "preemptions=0" not in first
    assert "prefix_hit_tokens=0" not in first
    assert "running=0, waiting=0, kv_blocks_used=0" in first
