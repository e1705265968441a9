"""Measures a cell's scheduler with many open streams and through kills.

Members without HTTP open requests at a fixed rate until as many streams as wanted are open. A window without faults
then shows the scheduler's CPU time and how long a request waits for its grant. After it the scheduler is killed several
times under the same load. At the end no new requests arrive, and every request must complete.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.cell_streams.member_streams import ProcessReport
from bench.cell_streams.processes import StreamCell
from bench.cell_streams.stages import Grant, grant_stages, p50_and_p99_ms, takeover_stages
from bench.cli import print_progress
from bench.cpu_cores import Cores, cpu_ns_between, cpu_times
from bench.load_generator import quantile
from testing.stores import Server

PROCESSES = 4
FILL_MARGIN_S = 3.0
"""Time after the first streams have ended, until the cell is in a steady state."""
AFTER_KILL_S = 5.0
DRAIN_S_MAX = 60.0
"""Maximum time for the last requests to end beyond the duration of a stream."""


@dataclass(frozen=True, slots=True)
class Setting:
    rate: float
    """New requests per second."""
    stream_s: float
    members: int
    window_s: float
    kills: int


@dataclass(frozen=True, slots=True)
class StreamFigures:
    offered_per_s: float
    new_per_s: float
    """Requests granted per second in the window."""
    open: float
    """Open requests at the end of the window."""
    leader_cores: float
    leader_us_per_request: float
    grant_ms_p50: float
    grant_ms_p99: float
    grant_stages_ms: dict[str, tuple[float, float]]
    """p50 and p99 of each stage from arrival to grant."""
    arrival_late_ms: tuple[float, float]
    """p50 and p99 of the delay of arrivals in the members' event loops."""
    member_round_trip_ms: tuple[float, float]
    """p50 and p99 of the members' round trips to the store."""
    leader_round_trip_ms: tuple[float, float]
    window_islands: int
    """Number of times that a member became an island in the window, without a fault."""
    progress_per_s: float
    """Progress of one stream reported to its member, per second."""
    store_cores: float
    member_cores: float
    leader_turn_ms: float
    """Longest turn of the scheduler's event loop in the window, in CPU time."""
    readmit_s: tuple[float, ...]
    """For each kill, the longest time that one member waited between two grants."""
    takeover_turn_ms: tuple[float, ...]
    """For each kill, the longest turn of the new scheduler's event loop, in CPU time."""
    takeover_stages_ms: tuple[dict[str, float], ...]
    """For each kill, the duration of each stage until all members have grants."""
    islands: int
    lost: int


def measure(store: Server, cores: Cores, setting: Setting) -> StreamFigures:
    with StreamCell(
        store,
        cores,
        rate=setting.rate,
        stream_s=setting.stream_s,
        members=setting.members,
        processes=min(PROCESSES, setting.members),
    ) as cell:
        cell.reports(rate=setting.rate)
        print_progress(f"opening {setting.rate:g} requests/s on {cell.endpoints} endpoints")
        time.sleep(setting.stream_s + FILL_MARGIN_S)
        window = _window(cell, store, setting)
        readmits: list[float] = []
        turns: list[float] = []
        stages: list[dict[str, float]] = []
        for number in range(setting.kills):
            readmit_s, turn_ms, stages_ms = _kill(cell, setting.members)
            readmits.append(readmit_s)
            turns.append(turn_ms)
            stages.append(stages_ms)
            print_progress(f"  kill {number + 1}: granted again after {readmit_s:.2f} s, longest turn {turn_ms:.0f} ms")
            print_progress("    ms: " + ", ".join(f"{name} {took:g}" for name, took in stages_ms.items()))
        last = _drain(cell, setting.stream_s)
    lost = {what: count for each in last for what, count in each.lost.items()}
    for what, count in sorted(lost.items()):
        print_progress(f"  {count} lost: {what}")
    left = sum(each.offered - each.ended for each in last)
    return StreamFigures(
        **window,
        readmit_s=tuple(readmits),
        takeover_turn_ms=tuple(turns),
        takeover_stages_ms=tuple(stages),
        islands=sum(each.islands for each in last),
        lost=left,
    )


def _window(cell: StreamCell, store: Server, setting: Setting) -> dict[str, Any]:
    leader = cell.leader()
    before = cell.reports()
    leader.report(reset=True)
    start_s = time.monotonic()
    cpu = [cpu_times(pids) for pids in ([leader.pid], [store.pid], cell.member_pids)]
    time.sleep(setting.window_s)
    used_ns = [
        cpu_ns_between(earlier, cpu_times(pids))
        for earlier, pids in zip(cpu, ([leader.pid], [store.pid], cell.member_pids), strict=True)
    ]
    seconds = time.monotonic() - start_s
    after = cell.reports()
    scheduling = leader.report()
    granted = [grant for each in after for grant in each.granted]
    waits = sorted(grant.wait_us for grant in granted)
    figures: dict[str, Any] = {
        "offered_per_s": round(_growth(before, after, "offered") / seconds),
        "new_per_s": round(len(granted) / seconds),
        "open": sum(each.open for each in after),
        "leader_cores": round(used_ns[0] / 1e9 / seconds, 3),
        "leader_us_per_request": round(used_ns[0] / 1e3 / max(1, len(granted)), 1),
        "grant_ms_p50": round(quantile(waits, 0.5) / 1e3, 2),
        "grant_ms_p99": round(quantile(waits, 0.99) / 1e3, 2),
        "grant_stages_ms": grant_stages((each for report in after for each in report.requests), scheduling.decisions),
        "arrival_late_ms": p50_and_p99_ms(late for each in after for late in each.late_us),
        "member_round_trip_ms": p50_and_p99_ms(took for each in after for took in each.round_trips_us),
        "leader_round_trip_ms": p50_and_p99_ms(scheduling.round_trips_us),
        "window_islands": round(_growth(before, after, "islands")),
        "progress_per_s": round(_growth(before, after, "progress") / seconds),
        "store_cores": round(used_ns[1] / 1e9 / seconds, 3),
        "member_cores": round(used_ns[2] / 1e9 / seconds, 3),
        "leader_turn_ms": scheduling.turn_cpu_ms,
    }
    print_progress("  " + ", ".join(f"{name} {figure}" for name, figure in figures.items()))
    return figures


def _growth(before: Sequence[ProcessReport], after: Sequence[ProcessReport], name: str) -> int:
    return sum(getattr(each, name) for each in after) - sum(getattr(each, name) for each in before)


def _kill(cell: StreamCell, members: int) -> tuple[float, float, dict[str, float]]:
    """Kill the scheduler.

    Return the time without grants at the worst member, the successor's longest turn, and the stages of the takeover.
    """
    cell.reports()
    for process in cell.candidates:
        process.report(reset=True)
    killed_s = cell.kill_leader()
    time.sleep(AFTER_KILL_S)
    until_s = time.monotonic()
    granted = [grant for each in cell.reports() for grant in each.granted]
    successor = cell.leader().report()
    cell.add_candidate()
    return (
        readmit_s(granted, killed_s, until_s, members),
        successor.turn_cpu_ms,
        takeover_stages(successor.takeovers[-1], round(killed_s * 1e6), granted),
    )


def readmit_s(granted: Sequence[Grant], killed_s: float, until_s: float, members: int) -> float:
    """Return the longest time without a grant at any member, among the gaps that end after the kill.

    A gap begins with the last grant, or with the kill if no earlier grant is known. It ends at the next grant or at
    `until_s`, the end of the observation.
    """
    longest_us = 0.0
    last: dict[int, float] = dict.fromkeys(range(members), killed_s * 1e6)
    for grant in sorted(granted, key=lambda each: each.at_us):
        if grant.at_us > killed_s * 1e6:
            longest_us = max(longest_us, grant.at_us - last[grant.member])
        last[grant.member] = grant.at_us
    return round(max([longest_us, *(until_s * 1e6 - at_us for at_us in last.values())]) / 1e6, 3)


def _drain(cell: StreamCell, stream_s: float) -> list[ProcessReport]:
    """Stop the load and wait until all requests have ended, but not forever."""
    print_progress("waiting for the last requests")
    give_up_s = time.monotonic() + stream_s + DRAIN_S_MAX
    last = cell.reports(rate=0.0)
    while any(each.open for each in last) and time.monotonic() < give_up_s:
        time.sleep(0.5)
        last = cell.reports()
    return last
