"""The same log produces the same commands, byte for byte, in every host and in every process.

Each of three logs is replayed in every host. One is generated from a seed and covers everything that a scheduler can
encounter, one is recorded by a real gateway, and one comes from a simulation.
"""

import asyncio
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from headgate.core.commands import Abort, Command, Dispatch, Eject, End, Readmit
from headgate.core.events import AttemptEnded, AttemptEnding, Event, SharesAssigned, TakeoverReport
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from testing.builds import IS_COMPILED, NEEDS_PURE_BUILD
from tests.replay.hosts import HOSTS
from tests.replay.imagined import imagine
from tests.replay.log import Log, fingerprint, replay, write, write_with_shares
from tests.replay.recorded import record

SEED, LENGTH = 20_240_817, 10_000
DIVIDED_LENGTH = 3_000
CELL_LENGTH = 2_500
"""Number of entries replayed in a cell, which is much slower because it encodes and decodes every message."""
HASH_SEEDS = ("0", "random")

Written = tuple[Log, list[list[Command]]]
"""Log and the commands that were returned while it was written."""


@cache
def made_up() -> Written:
    return write(SEED, LENGTH)


@cache
def divided() -> Written:
    """Log of a cell that may use only shares of its tenants' limits."""
    return write_with_shares(SEED, DIVIDED_LENGTH)


@cache
def recorded() -> Written:
    with TemporaryDirectory() as folder:
        recorder = asyncio.run(record(Path(folder)))
    return recorder.log, recorder.answers


@cache
def imagined() -> Written:
    recorder = imagine()
    return recorder.log, recorder.answers


LOGS: Mapping[str, Callable[[], Written]] = {
    "generated from a seed": made_up,
    "generated, with shares of limits": divided,
    "recorded by a gateway": recorded,
    "simulated": imagined,
}
each_log = pytest.mark.parametrize("written", LOGS.values(), ids=LOGS.keys())


@each_log
@pytest.mark.parametrize("host", HOSTS)
def test_every_host_produces_same_commands(written: Callable[[], Written], host: str) -> None:
    if host == "cell" and IS_COMPILED:
        pytest.skip(NEEDS_PURE_BUILD)
    log, answers = written()
    length = CELL_LENGTH if host == "cell" else len(log)

    assert repr(HOSTS[host](log[:length])) == repr(answers[:length])


@pytest.mark.nightly
@each_log
def test_cell_produces_same_commands_for_complete_log(written: Callable[[], Written]) -> None:
    log, answers = written()

    assert repr(HOSTS["cell"](log)) == repr(answers)


@each_log
def test_replay_produces_same_commands(written: Callable[[], Written]) -> None:
    log, answers = written()

    assert replay(log) == answers


@pytest.mark.process
@pytest.mark.parametrize("hash_seed", HASH_SEEDS)
def test_hash_seed_does_not_change_commands(hash_seed: str) -> None:
    log, answers = made_up()

    said = _in_another_process(hash_seed, str(SEED), str(LENGTH))

    assert said == [fingerprint(log), fingerprint(answers)]


@pytest.mark.process
@each_log
def test_replay_in_another_process_produces_same_commands(written: Callable[[], Written], tmp_path: Path) -> None:
    log, answers = written()
    file = tmp_path / "log"
    file.write_bytes(pickle.dumps(log))

    assert _in_another_process("random", str(file)) == [fingerprint(log), fingerprint(answers)]


def _in_another_process(hash_seed: str, *arguments: str) -> list[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.replay.log", *arguments],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split()


# Coverage of the logs


def kinds(things: list[Event] | list[Command]) -> Counter[str]:
    return Counter(type(thing).__name__ for thing in things)


def commands_of(answers: list[list[Command]]) -> list[Command]:
    return [command for answer in answers for command in answer]


def outcomes_of(answers: list[list[Command]]) -> set[Outcome]:
    return {command.outcome for command in commands_of(answers) if isinstance(command, End)}


def test_generated_log_covers_scheduler_commands_and_outcomes() -> None:
    _, answers = made_up()
    orders = kinds(commands_of(answers))

    assert set(orders) == {kind.__name__ for kind in (Dispatch, Abort, End, Eject, Readmit)}
    assert min(orders.values()) >= 10
    assert outcomes_of(answers) >= {
        Outcome.COMPLETED,
        Outcome.INVALID_REQUEST,
        Outcome.MODEL_NOT_FOUND,
        Outcome.REQUEST_TOO_LARGE,
        Outcome.UNAUTHORIZED,
        Outcome.FORBIDDEN,
        Outcome.DUPLICATE_REQUEST,
        Outcome.RETRY_BUDGET_EXHAUSTED,
        Outcome.QUARANTINED,
        Outcome.QUEUE_FULL,
        Outcome.DRAINING,
        Outcome.QUEUE_TIMEOUT,
        Outcome.DEADLINE_EXCEEDED,
        Outcome.EVICTED,
        Outcome.CANCELLED,
        Outcome.ENGINE_ERROR,
        Outcome.ENGINE_TIMEOUT,
        Outcome.ENGINE_REJECTED,
        Outcome.INTERNAL_ERROR,
    }


def test_generated_log_with_shares_covers_rejections_and_changes_in_slices() -> None:
    log, answers = divided()
    refused = [each.reason for each in commands_of(answers) if isinstance(each, End)]

    assert kinds([event for event, _ in log])["SharesAssigned"] > 50
    for percent in (10, 25, 75):
        assert any(f"with {percent} % of its limits in this cell" in each for each in refused)
    scheduler, pending = Scheduler(), 0
    for event, now in log:
        scheduler.handle(event, now)
        pending += bool(scheduler._share_update.pending)
    assert pending > 10


def test_recorded_log_covers_all_events_and_commands() -> None:
    log, answers = recorded()
    endings = {event.ending for event, _ in log if isinstance(event, AttemptEnded)}

    # A single process never takes over the work of an earlier scheduler, and there are no other cells.
    impossible = (*TakeoverReport.__args__, SharesAssigned)
    possible = [kind.__name__ for kind in Event.__args__ if kind not in impossible]
    assert set(kinds([event for event, _ in log])) == set(possible)
    assert endings == set(AttemptEnding)
    assert set(kinds(commands_of(answers))) == {kind.__name__ for kind in Command.__args__}
    assert outcomes_of(answers) >= {
        Outcome.COMPLETED,
        Outcome.MODEL_NOT_FOUND,
        Outcome.QUEUE_TIMEOUT,
        Outcome.CANCELLED,
    }
    assert any(isinstance(command, Dispatch) and command.waited_ns > 0 for command in commands_of(answers))
    assert any(isinstance(command, Dispatch) and command.attempt > 1 for command in commands_of(answers))


def test_simulated_log_covers_all_commands() -> None:
    log, answers = imagined()

    assert len(log) > 2_000
    assert set(kinds(commands_of(answers))) == {kind.__name__ for kind in Command.__args__}
    assert outcomes_of(answers) >= {Outcome.COMPLETED, Outcome.CANCELLED, Outcome.QUEUE_TIMEOUT, Outcome.ENGINE_ERROR}
