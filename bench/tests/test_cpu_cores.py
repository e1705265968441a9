"""Tests for CPU time measurement and CPU affinity."""

import os
import subprocess
import sys
import threading
import time

import pytest

from bench.cpu_cores import TooFewCores, core_busy_ns, cpu_ns_between, cpu_times, family_of, started_on, two_cores

SPIN = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\nprint(flush=True)\ninput()"


def spinner(seconds: float) -> "subprocess.Popen[str]":
    """Start a process that uses this much CPU time, prints a line and waits."""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", SPIN.format(seconds)], stdin=pipe, stdout=pipe, text=True)


@pytest.mark.process
def test_cpu_times_include_process_cpu_time() -> None:
    with spinner(0.3) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used_ns = cpu_ns_between({}, cpu_times([process.pid]))
        process.communicate("\n")

    # Starting the interpreter also takes CPU time, which depends on the machine.
    assert 0.29e9 < used_ns < 2e9


@pytest.mark.process
def test_idle_process_uses_no_cpu_time() -> None:
    with spinner(0.0) as process:
        assert process.stdout is not None
        process.stdout.readline()
        earlier = cpu_times([process.pid])
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
        used_ns = cpu_ns_between(earlier, cpu_times([process.pid]))
        process.communicate("\n")

    assert used_ns < 0.1e9


def test_cpu_time_between_counts_new_threads_and_ignores_finished_threads() -> None:
    assert cpu_ns_between({1: 100, 2: 50}, {1: 130, 3: 7}) == 37


def test_cpu_times_include_every_thread() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert {threading.get_native_id(), thread.native_id} <= cpu_times([os.getpid()]).keys()
    finally:
        over.set()
        thread.join()


@pytest.mark.process
def test_family_includes_process_and_children() -> None:
    with spinner(0.0) as process:
        found = family_of(os.getpid())
        process.communicate("\n")

    assert found[0] == os.getpid()
    assert process.pid in found


@pytest.mark.process
def test_started_on_pins_child_and_restores_own_affinity() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    with started_on(core), spinner(0.0) as process:
        affinity = os.sched_getaffinity(process.pid)
        process.communicate("\n")

    assert affinity == {core}
    assert os.sched_getaffinity(0) == before


def test_target_and_instruments_run_on_different_cores() -> None:
    cores = two_cores()

    assert cores.target != cores.instruments


def test_core_busy_time_never_decreases() -> None:
    core = min(os.sched_getaffinity(0))
    earlier = core_busy_ns(core)

    assert 0 < earlier <= core_busy_ns(core)


def test_two_cores_reports_missing_core() -> None:
    with started_on(min(os.sched_getaffinity(0))), pytest.raises(TooFewCores, match="two cores are needed"):
        two_cores()
