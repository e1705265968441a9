"""Does the same log give the same commands, byte for byte, in every process?"""

import os
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest

from headgate.core.commands import Command, End
from headgate.model.outcome import Outcome
from tests.replay.log import Log, fingerprint, replay, write

SEED, LENGTH = 20_240_817, 10_000


@cache
def written() -> tuple[Log, list[list[Command]]]:
    return write(SEED, LENGTH)


def test_a_log_played_again_gives_the_same_commands() -> None:
    log, answers = written()

    assert replay(log) == answers


@pytest.mark.parametrize("hash_seed", ["0", "1", "2", "random"])
def test_the_hash_seed_changes_nothing(hash_seed: str) -> None:
    log, answers = written()

    said = subprocess.run(
        [sys.executable, "-m", "tests.replay.log", str(SEED), str(LENGTH)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        check=True,
        text=True,
    ).stdout

    assert said.split() == [fingerprint(log), fingerprint(answers)]


def test_the_log_is_worth_playing() -> None:
    """It makes the scheduler do everything that it can do."""
    _, answers = written()
    orders = Counter(type(command).__name__ for answer in answers for command in answer)
    endings = Counter(command.outcome for answer in answers for command in answer if isinstance(command, End))

    assert set(orders) == {"Dispatch", "Abort", "End", "Eject", "Readmit"}
    assert min(orders.values()) >= 20
    assert set(endings) >= {
        Outcome.COMPLETED,
        Outcome.INVALID,
        Outcome.MODEL_NOT_FOUND,
        Outcome.TOO_LARGE,
        Outcome.UNAUTHORIZED,
        Outcome.FORBIDDEN,
        Outcome.DUPLICATE,
        Outcome.RETRY_REFUSED,
        Outcome.QUEUE_FULL,
        Outcome.DRAINING,
        Outcome.EXPIRED,
        Outcome.TOO_LATE,
        Outcome.EVICTED,
        Outcome.CANCELLED,
        Outcome.ENGINE_FAILED,
        Outcome.ENGINE_SILENT,
        Outcome.ENGINE_REFUSED,
    }
