"""Does the same log give the same commands, byte for byte, in every host and in every process?

Three logs: one that a seed made up, with all that a scheduler can meet; one that a real gateway wrote; one of a virtual
day. Each is told to every host.
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
from headgate.core.events import AttemptEnded, AttemptEnding, Event, Report
from headgate.model.outcome import Outcome
from tests.replay.hosts import HOSTS
from tests.replay.imagined import imagine
from tests.replay.log import Log, fingerprint, replay, write
from tests.replay.recorded import record

SEED, LENGTH = 20_240_817, 10_000
CELL_LENGTH = 2_500
"""A cell writes and reads every message, and so takes much longer than a host of one process."""
HASH_SEEDS = ("0", "random")

Written = tuple[Log, list[list[Command]]]
"""A log, and what was decided while it was written."""


@cache
def made_up() -> Written:
    return write(SEED, LENGTH)


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
    "made up by a seed": made_up,
    "recorded by a gateway": recorded,
    "of a virtual day": imagined,
}
each_log = pytest.mark.parametrize("written", LOGS.values(), ids=LOGS.keys())


@each_log
@pytest.mark.parametrize("host", HOSTS)
def test_every_host_gives_the_commands_of_the_log(written: Callable[[], Written], host: str) -> None:
    log, answers = written()
    length = CELL_LENGTH if host == "cell" else len(log)

    assert repr(HOSTS[host](log[:length])) == repr(answers[:length])


@pytest.mark.nightly
@each_log
def test_cell_gives_the_commands_of_the_whole_log(written: Callable[[], Written]) -> None:
    log, answers = written()

    assert repr(HOSTS["cell"](log)) == repr(answers)


@each_log
def test_a_log_played_again_gives_the_same_commands(written: Callable[[], Written]) -> None:
    log, answers = written()

    assert replay(log) == answers


@pytest.mark.process
@pytest.mark.parametrize("hash_seed", HASH_SEEDS)
def test_the_hash_seed_changes_nothing(hash_seed: str) -> None:
    log, answers = made_up()

    said = _in_another_process(hash_seed, str(SEED), str(LENGTH))

    assert said == [fingerprint(log), fingerprint(answers)]


@pytest.mark.process
@each_log
def test_a_log_goes_to_another_process_and_says_the_same_there(written: Callable[[], Written], tmp_path: Path) -> None:
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


# Are the logs worth playing?


def kinds(things: list[Event] | list[Command]) -> Counter[str]:
    return Counter(type(thing).__name__ for thing in things)


def commands_of(answers: list[list[Command]]) -> list[Command]:
    return [command for answer in answers for command in answer]


def outcomes_of(answers: list[list[Command]]) -> set[Outcome]:
    return {command.outcome for command in commands_of(answers) if isinstance(command, End)}


def test_the_made_up_log_makes_the_scheduler_do_all_that_it_can_do() -> None:
    _, answers = made_up()
    orders = kinds(commands_of(answers))

    assert set(orders) == {kind.__name__ for kind in (Dispatch, Abort, End, Eject, Readmit)}
    assert min(orders.values()) >= 10
    assert outcomes_of(answers) >= {
        Outcome.COMPLETED,
        Outcome.INVALID,
        Outcome.MODEL_NOT_FOUND,
        Outcome.TOO_LARGE,
        Outcome.UNAUTHORIZED,
        Outcome.FORBIDDEN,
        Outcome.DUPLICATE,
        Outcome.RETRY_REFUSED,
        Outcome.QUARANTINED,
        Outcome.QUEUE_FULL,
        Outcome.DRAINING,
        Outcome.EXPIRED,
        Outcome.TOO_LATE,
        Outcome.EVICTED,
        Outcome.CANCELLED,
        Outcome.ENGINE_FAILED,
        Outcome.ENGINE_SILENT,
        Outcome.ENGINE_REFUSED,
        Outcome.GATEWAY_FAILED,
    }


def test_the_gateway_told_of_everything_that_can_happen() -> None:
    log, answers = recorded()
    endings = {event.ending for event, _ in log if isinstance(event, AttemptEnded)}

    # A process of its own takes nobody's place.
    possible = [kind.__name__ for kind in Event.__args__ if kind not in Report.__args__]
    assert set(kinds([event for event, _ in log])) == set(possible)
    assert endings == set(AttemptEnding)
    assert set(kinds(commands_of(answers))) == {kind.__name__ for kind in Command.__args__}
    assert outcomes_of(answers) >= {
        Outcome.COMPLETED,
        Outcome.MODEL_NOT_FOUND,
        Outcome.EXPIRED,
        Outcome.CANCELLED,
    }
    assert any(isinstance(command, Dispatch) and command.waited_ns > 0 for command in commands_of(answers))
    assert any(isinstance(command, Dispatch) and command.attempt > 1 for command in commands_of(answers))


def test_the_virtual_day_had_trouble() -> None:
    log, answers = imagined()

    assert len(log) > 2_000
    assert set(kinds(commands_of(answers))) == {kind.__name__ for kind in Command.__args__}
    assert outcomes_of(answers) >= {Outcome.COMPLETED, Outcome.CANCELLED, Outcome.EXPIRED, Outcome.ENGINE_FAILED}
