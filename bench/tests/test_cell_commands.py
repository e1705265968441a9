"""Tests that interrupted cell benchmarks leave no process running."""

import signal
import subprocess
import sys
import time

import pytest

from bench.cpu_cores import family_of
from bench.tests.test_commands import INTERRUPTIBLE, ROOT, command_of, is_running, still_running

pytestmark = [pytest.mark.cell, pytest.mark.timeout(400)]


def family_when_started(pid: int, last: str) -> list[int]:
    """Return all processes started so far, once one of them runs this command."""
    while True:
        found = family_of(pid)
        if any(last in command_of(each) for each in found):
            return found
        assert is_running(pid), "the benchmark exited before it measured anything"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.nightly), signal.SIGTERM])
@pytest.mark.parametrize(
    ("command", "last"),
    [
        (("bench.kill_cell", "--quick"), "bench.kill_cell.load"),
        (("bench.cell_overhead", "--quick", "--parts", "throughput"), "member-1-0"),
    ],
    ids=["kill-cell", "bench-cell"],
)
def test_interrupted_cell_benchmark_leaves_no_process_running(number: int, command: tuple[str, ...], last: str) -> None:
    with subprocess.Popen(
        [*INTERRUPTIBLE, sys.executable, "-m", *command], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        started = family_when_started(process.pid, last)
        process.send_signal(number)
        said, _ = process.communicate(timeout=120)

    assert process.returncode == (130 if number == signal.SIGINT else 143)
    assert said == b""
    assert still_running(started) == []
