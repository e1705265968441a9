"""Commands of the group `Plan` end cleanly on SIGTERM and leave nothing running."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headgate.cli.input.termination import interrupted_by_sigterm
from testing.simulated_engines import HEADGATE

SCENARIO = Path(__file__).parents[2] / "scenarios" / "plan.yaml"


@contextmanager
def running(*command: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(reached: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_of_a_plan_end_with_it(tmp_path: Path, number: signal.Signals) -> None:
    command = (*HEADGATE, "plan", str(SCENARIO), "--processes", "2", "--html", "plan.html")
    with running(*command, folder=tmp_path) as process:
        wait_for(lambda: len(workers_of(process)) == 2)
        workers = workers_of(process)
        os.kill(process.pid, number)
        _, said = process.communicate(timeout=60)
        wait_for(lambda: not any(map(is_running, workers)))

    assert list(tmp_path.iterdir()) == []
    if number == signal.SIGTERM:
        assert (process.returncode, said) == (1, "headgate plan: stopped; there is no partial plan\n")


WAITING = """
import signal, sys
from headgate.cli.input.termination import interrupted_by_sigterm
if sys.argv[1:]:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
try:
    with interrupted_by_sigterm():
        print("ready", file=sys.stderr, flush=True)
        signal.pause()
except KeyboardInterrupt:
    print("cleaned up", file=sys.stderr)
"""


@pytest.mark.process
@pytest.mark.parametrize("arguments", [(), ("ignore interrupts",)])
def test_sigterm_lets_a_command_clean_up(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """A script's background commands ignore Ctrl-C."""
    with running(sys.executable, "-c", WAITING, *arguments, folder=tmp_path) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)

    assert (process.returncode, said) == (0, "cleaned up\n")


def test_handler_of_sigterm_is_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with interrupted_by_sigterm():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)

    assert signal.getsignal(signal.SIGTERM) == before
