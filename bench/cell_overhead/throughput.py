"""Measure how many requests per second one scheduler can handle over a real store, and its CPU time per request.

The scheduler has one core. The store shares another core with eight members, which hold the requests and run in two
processes. Each step of the curve offers a higher rate. A step is sustained if completions keep up with arrivals. A step
that is not sustained is repeated once, because other load on the machine can only make it worse.
"""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec

from bench.cell_overhead.member_load import DRAIN_S_MAX, Plan, Step, StepResult
from bench.cell_process import CellProcess
from bench.cli import print_progress
from bench.cpu_cores import Cores, cpu_ns_between, cpu_times
from bench.load_generator import quantile
from testing.stores import Server

RATES = (500, 1_000, 2_000, 3_000, 5_000)
MEMBERS, PROCESSES = 8, 2
WARM_UP_S = 1.5
KEEPS_UP = 0.97
"""Minimum share of the offered requests that must complete within the window."""
TRIES = 2


@dataclass(frozen=True, slots=True)
class Point:
    offered_per_s: float
    ended_per_s: float
    grant_ms_p50: float
    grant_ms_p99: float
    scheduler_share: float
    """Share of one core that the scheduler used."""
    scheduler_cpu_us: float
    """Scheduler CPU time per completed request."""
    store_share: float
    members_share: float
    refused: int
    left: int

    @property
    def sustained(self) -> bool:
        return not self.refused and not self.left and self.ended_per_s >= KEEPS_UP * self.offered_per_s


class Process(CellProcess):
    def __init__(self, plan: Plan, core: int) -> None:
        super().__init__("bench.cell_overhead.member_load", plan, core)

    def begin(self, step: Step) -> None:
        self.send(step)

    def result(self) -> StepResult:
        return msgspec.json.decode(self.line(), type=StepResult)


def measure(store: Server, cores: Cores, *, rates: Sequence[int], seconds: float) -> list[Point]:
    with ExitStack() as stack:

        def started(names: Sequence[str], core: int, *, schedules: bool, seed: int) -> Process:
            plan = Plan(store=store.url, members=tuple(names), of=MEMBERS, schedules=schedules, seed=seed)
            process = Process(plan, core)
            stack.callback(process.kill)
            return process

        scheduler = started(["scheduler"], cores.target, schedules=True, seed=0)
        scheduler.wait_until_ready()
        each = MEMBERS // PROCESSES
        names = [[f"member-{number}-{nth}" for nth in range(each)] for number in range(PROCESSES)]
        members = [
            started(mine, cores.instruments, schedules=False, seed=number) for number, mine in enumerate(names, start=1)
        ]
        for process in members:
            process.wait_until_ready()
        points: list[Point] = []
        for rate in rates:
            points.append(_step_with_retries(scheduler, members, store, rate, seconds))
            if points[-1].left or points[-1].refused:
                break
        return points


def _step_with_retries(
    scheduler: Process, members: Sequence[Process], store: Server, rate: float, seconds: float
) -> Point:
    point = None
    for _ in range(TRIES):
        point = _step(scheduler, members, store, rate, seconds)
        print_progress(f"  {format_point(point)}")
        if point.sustained:
            break
    assert point is not None
    return point


def _step(scheduler: Process, members: Sequence[Process], store: Server, rate: float, seconds: float) -> Point:
    start_s = time.monotonic() + 0.3
    step = Step(start_s=start_s, warm_up_s=WARM_UP_S, seconds=seconds, rate=rate / len(members))
    for process in members:
        process.begin(step)
    time.sleep(max(0.0, start_s + WARM_UP_S - time.monotonic()))
    before = [cpu_times([pid]) for pid in (scheduler.pid, store.pid)]
    time.sleep(seconds)
    used_ns = [
        cpu_ns_between(earlier, cpu_times([pid]))
        for earlier, pid in zip(before, (scheduler.pid, store.pid), strict=True)
    ]
    found = [process.result() for process in members]
    time.sleep(0.5 if not any(each.unfinished for each in found) else DRAIN_S_MAX)
    for why, count in sorted(Counter({why: count for each in found for why, count in each.rejected.items()}).items()):
        print_progress(f"    {count} did not complete: {why}")
    grants = sorted(us for each in found for us in each.grant_us)
    ended = sum(each.ended for each in found)
    return Point(
        offered_per_s=round(sum(each.offered for each in found) / seconds),
        ended_per_s=round(ended / seconds),
        grant_ms_p50=round(quantile(grants, 0.5) / 1e3, 2),
        grant_ms_p99=round(quantile(grants, 0.99) / 1e3, 2),
        scheduler_share=round(used_ns[0] / 1e9 / seconds, 3),
        scheduler_cpu_us=round(used_ns[0] / 1e3 / max(1, ended), 1),
        store_share=round(used_ns[1] / 1e9 / seconds, 3),
        members_share=round(sum(each.cpu_s for each in found) / seconds, 3),
        refused=sum(sum(each.rejected.values()) for each in found),
        left=sum(each.unfinished for each in found),
    )


def format_point(point: Point) -> str:
    wrong = f"; {point.refused} rejected, {point.left} still open" if point.refused or point.left else ""
    return (
        f"offered {point.offered_per_s:,.0f}/s: {point.ended_per_s:,.0f}/s completed, "
        f"grant p50 {point.grant_ms_p50:.1f} ms, p99 {point.grant_ms_p99:.1f} ms; "
        f"scheduler {point.scheduler_share:.0%} of a core, {point.scheduler_cpu_us:.0f} µs per request; "
        f"store {point.store_share:.0%}, members {point.members_share:.0%}{wrong}"
    )
