"""Measure how many instructions and how much CPU time the diagnosis takes per event.

    python -m bench.diagnosis_speed [--requests N]

The events are those of the scheduler benchmark (bench/scheduler_speed.py): for each request, an arrival with a dispatch
of a queued request, a first token and an end, and a progress report for each 64 attempts, which is one event.

The instructions are counted with callgrind, as the difference between two runs that observe the events once and twice.
They do not depend on other load on the machine. The CPU time is that of the fastest run, and the ratio compares it with
the time that the scheduler needs for the same events.

The last line is JSON.
"""

import argparse
import gc
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from time import process_time

from bench.instructions.counter import check_valgrind
from bench.scheduler_speed import LoadedScheduler, Size
from headgate.core.commands import Command
from headgate.core.diagnosis.diagnosis import Diagnosis
from headgate.core.events import Event
from headgate.core.scheduler import Scheduler
from headgate.model.units import Instant

SIZE = Size(tenants=50, endpoints=4, queued=20)
REQUESTS = 500
RUNS = 8


@dataclass(frozen=True, slots=True)
class Observation:
    event: Event
    commands: Sequence[Command]
    now: Instant


class RecordingScheduler(LoadedScheduler):
    """A loaded scheduler whose events and commands are kept."""

    def __init__(self, requests: int) -> None:
        self.seen: list[Observation] = []
        super().__init__(SIZE, requests)

    def _begin(self) -> None:
        self.scheduler = _Recorder(self.scheduler, self.seen)  # pyright: ignore[reportAttributeAccessIssue]
        super()._begin()


class _Recorder:
    def __init__(self, scheduler: Scheduler, seen: list[Observation]) -> None:
        self._scheduler, self._seen = scheduler, seen

    def handle(self, event: Event, now: Instant) -> list[Command]:
        commands = self._scheduler.handle(event, now)
        self._seen.append(Observation(event, commands, now))
        return commands


def observations(requests: int) -> tuple[list[Observation], list[Observation]]:
    """Return the observations before and during the measurement."""
    bench = RecordingScheduler(requests)
    before = len(bench.seen)
    bench.run_requests(requests)
    return bench.seen[:before], bench.seen[before:]


def observe_all(before: Sequence[Observation], found: Sequence[Observation], times: int) -> float:
    """Return the CPU time of observing `found`, each time with a new diagnosis."""
    took_s = 0.0
    for _ in range(times):
        observe = Diagnosis().observe
        for each in before:
            observe(each.event, each.commands, each.now)
        start = process_time()
        for each in found:
            observe(each.event, each.commands, each.now)
        took_s += process_time() - start
    return took_s


def instructions(requests: int, part: str) -> int:
    """Count the instructions of a process that observes nothing, the first events, or all events."""
    worker = [sys.executable, "-m", "bench.diagnosis_speed", "--requests", str(requests), "--part", part]
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *worker]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    collected = re.search(r"Collected : (\d+)", done.stderr)
    assert collected, done.stderr
    return int(collected[1])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="diagnosis-speed", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"request lifecycles (default {REQUESTS:,})")
    parser.add_argument("--part", choices=("before", "all"), help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    before, found = observations(args.requests)
    # The garbage collector would run at different points, and would mostly traverse the kept events.
    gc.disable()
    if args.part:
        observe_all(before, found if args.part == "all" else (), 1)
        return 0
    check_valgrind()
    scheduler_s = min(LoadedScheduler(SIZE, args.requests).run_requests(args.requests) for _ in range(RUNS))
    diagnosis_s = min(observe_all(before, found, 1) for _ in range(RUNS))
    counted = instructions(args.requests, "all") - instructions(args.requests, "before")
    figures = {
        "instructions_per_event": round(counted / len(found)),
        "us_per_event": round(1e6 * diagnosis_s / len(found), 2),
        "time_over_scheduler": round(diagnosis_s / scheduler_s, 3),
    }
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
