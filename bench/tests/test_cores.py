"""Is CPU time read rightly, and is a process where it was put?"""

import os
import subprocess
import sys
import threading
import time

import pytest

from bench.cores import TooFewCores, core_busy_ns, cpu_ns_between, cpu_times, family_of, started_on, two_cores

SPIN = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\nprint(flush=True)\ninput()"


def spinner(seconds: float) -> "subprocess.Popen[str]":
    """Uses so much CPU, says so, and waits."""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", SPIN.format(seconds)], stdin=pipe, stdout=pipe, text=True)


@pytest.mark.process
def test_the_scheduler_counts_what_a_process_used() -> None:
    with spinner(0.3) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used_ns = cpu_ns_between({}, cpu_times([process.pid]))
        process.communicate("\n")

    # Starting the interpreter costs CPU as well, how much depends on the machine.
    assert 0.29e9 < used_ns < 2e9


@pytest.mark.process
def test_a_process_that_waits_uses_nothing_while_we_work() -> None:
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


def test_a_thread_that_began_meanwhile_counts_and_one_that_ended_does_not_subtract() -> None:
    assert cpu_ns_between({1: 100, 2: 50}, {1: 130, 3: 7}) == 37


def test_every_thread_of_a_process_is_read() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert {threading.get_native_id(), thread.native_id} <= cpu_times([os.getpid()]).keys()
    finally:
        over.set()
        thread.join()


@pytest.mark.process
def test_a_family_is_the_process_and_its_children() -> None:
    with spinner(0.0) as process:
        found = family_of(os.getpid())
        process.communicate("\n")

    assert found[0] == os.getpid()
    assert process.pid in found


@pytest.mark.process
def test_a_process_runs_on_the_core_it_was_started_on_and_we_go_on_where_we_were() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    with started_on(core), spinner(0.0) as process:
        affinity = os.sched_getaffinity(process.pid)
        process.communicate("\n")

    assert affinity == {core}
    assert os.sched_getaffinity(0) == before


def test_target_and_instruments_have_different_cores() -> None:
    cores = two_cores()

    assert cores.target != cores.instruments


def test_a_core_is_never_less_busy_than_before() -> None:
    core = min(os.sched_getaffinity(0))
    earlier = core_busy_ns(core)

    assert 0 < earlier <= core_busy_ns(core)


def test_a_process_with_one_core_is_told_what_is_missing() -> None:
    with started_on(min(os.sched_getaffinity(0))), pytest.raises(TooFewCores, match="two cores are needed"):
        two_cores()
