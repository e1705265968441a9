"""The fuzz targets work, and inputs that have failed before stay in the corpus.

Every seed passes, as do mutations of the seeds. libFuzzer runs briefly on one target, and nightly on all of them. `just
fuzz` runs it for any duration.
"""

import importlib
import random
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.run import CORPUS, INPUT_BYTES_MAX, TARGETS, run_seeds, seeds_of

PROJECT = Path(__file__).parents[2]
MUTATION_S = 2
MUTATIONS = 200


def test_every_fuzz_target_has_seeds() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    assert all(seeds_of(target) for target in TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_pass_every_target(target: str) -> None:
    run_seeds(target)


def mutated(seed: bytes, chance: random.Random) -> bytes:
    """Return the seed with a few bytes changed, removed, repeated or truncated."""
    data = bytearray(seed)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del data[at : at + chance.randint(1, 8)]
            case 2:
                data[at:at] = data[at : at + chance.randint(1, 32)]
            case _:
                del data[at:]
    return bytes(data[:INPUT_BYTES_MAX])


@pytest.mark.parametrize("target", TARGETS)
def test_mutated_seeds_pass_every_target(target: str) -> None:
    one_input = importlib.import_module(f"fuzz.{target}").one_input
    chance, seeds = random.Random(7), [seed.read_bytes() for seed in seeds_of(target)]
    for _ in range(MUTATIONS):
        data = mutated(chance.choice(seeds), chance)
        try:
            one_input(data)
        except Exception as error:
            error.add_note(f"with the input {data!r}")
            raise


@pytest.mark.process
@pytest.mark.parametrize(
    "target", [TARGETS[0], *(pytest.param(each, marks=pytest.mark.nightly) for each in TARGETS[1:])]
)
def test_short_libfuzzer_run_finds_nothing(target: str, tmp_path: Path) -> None:
    # A target that ignores its input, or that libFuzzer cannot run, would also pass. On a stalled machine, a short run
    # executes only the seeds, so the run is repeated for longer.
    executed = 0
    for seconds in (MUTATION_S, 5 * MUTATION_S, 20 * MUTATION_S):
        command = [sys.executable, "-m", "fuzz.run", str(seconds), target, "--found", tmp_path]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        [told] = [line for line in done.stderr.splitlines() if "number_of_executed_units" in line]
        if (executed := int(told.split()[-1])) > len(seeds_of(target)):
            break
    assert executed > len(seeds_of(target))


@pytest.mark.process
def test_failing_target_is_reported(tmp_path: Path) -> None:
    """Replaces a target with one that fails for inputs of three bytes or more."""
    code = (
        "import sys, fuzz.replies, fuzz.run\n"
        "def one_input(data):\n"
        "    assert len(data) < 3, 'three bytes'\n"
        "fuzz.replies.one_input = one_input\n"
        "fuzz.run.fuzz('replies', ['-runs=1000', '-artifact_prefix=' + sys.argv[1] + '/', sys.argv[2]])\n"
    )
    command = [sys.executable, "-c", code, tmp_path, CORPUS / "replies"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=200, check=False)

    assert done.returncode != 0
    assert "three bytes" in done.stdout + done.stderr
    assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == ["crash"]
