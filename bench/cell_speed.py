"""Measure how many requests per second a cell's scheduler can handle on one core.

    python -m bench.cell_speed [--curve] [--requests N]

Members without HTTP report their requests to one `Leader`, through the real codec but without a store. Each request
arrives, is granted, sends its first token, reports progress once and ends. Every request carries 16 hashes of its
prompt prefix and every tenant has limits, as in `bench.scheduler_speed`. All slots are always taken, and a quarter as
many requests are waiting. Only the scheduler's work is measured: reading entries, deciding and writing entries.

The number of messages per entry depends on how often a member sends. `batch` is the number of requests, over all
members, that advance by one step between two sends. With 1, each message is sent as its own entry.

The speed of a machine varies, so fixed pure-Python work (bench/python_yardstick.py) runs in the same process in
alternating slices. Every figure is also printed as a ratio to it, and the requirement is on the ratio.

The last line is JSON: requests per second with batches of 64, 8 and 1, the cost per request, broken down by part, and
the ratios of both to the yardstick's rounds per second and to the time for one round. On the compiled build, the core
cannot be measured separately: its figures are null, and its time is part of deciding.
"""

import argparse
import gc
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from time import process_time_ns
from typing import cast

from bench.cli import print_progress
from bench.python_yardstick import Yardstick
from bench.scheduler_workload import ENDPOINTS, TENANTS, workload_endpoints, workload_policy, workload_ticket
from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptProgress,
    AttemptsProgressed,
    EndpointJoined,
    EndpointReady,
    Event,
    FirstToken,
    PolicyChanged,
)
from headgate.core.scheduler import Scheduler
from headgate.hosts.cell.leader.leader import Leader
from headgate.hosts.cell.member.member import Member
from headgate.hosts.cell.protocol.codec import decode_member_entry, decode_scheduler_entry, encode_entry
from headgate.hosts.cell.protocol.known_endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import Epoch, Share
from headgate.hosts.garbage_collection import tune_garbage_collector
from headgate.model.units import (
    MILLISECOND,
    SECOND,
    Duration,
    Instant,
)
from headgate.model.usage import Usage, UsageSource
from testing.builds import IS_COMPILED

OVER_YARDSTICK_MIN = 0.48
"""Minimum of requests per second with batches of 64, divided by the yardstick's rounds per second."""
MEMBERS = 8
USUAL_IN_FLIGHT = 1_000
CURVE = (100, 500, 1_000, 2_000, 5_000)
RUNS = 25
"""Number of runs. The fastest run counts, because other load on the machine only adds time."""
REQUEST_NS = Duration(SECOND // 4_000)
"""Virtual time between two requests."""
_USAGE = Usage(300, 120, 0, UsageSource.ENGINE)


class LoadedCell:
    """One scheduler and its members, with all slots taken."""

    def __init__(self, in_flight: int, *, members: int = MEMBERS, seed: int = 1) -> None:
        self.chance = Random(seed)
        self.now = Instant(1_000_000 * SECOND)
        self.in_flight = in_flight
        places = -(-in_flight // ENDPOINTS)
        rules = PolicyChanged(workload_policy(TENANTS, kv_tokens=5_000_000), "h")
        endpoints = KnownEndpoints()
        for endpoint in workload_endpoints(ENDPOINTS, places):
            endpoints.apply_event(EndpointJoined(endpoint))
            endpoints.apply_event(EndpointReady(endpoint.id))
        self.leader = Leader(Epoch(1, "one"), rules, endpoints, None, self.now)
        self.members = [Member(f"g{each}", 1, self.now, share=Share(each, members)) for each in range(members)]
        for member in self.members:
            member.handle(rules, self.now)
        self.opened = self.ended = 0
        self.granted: deque[tuple[Member, Dispatch]] = deque()
        self.running: deque[tuple[Member, Dispatch]] = deque()
        self.spent = 0
        self.entries = 0
        self.reported = dict.fromkeys(("reading", "deciding", "core", "writing"), 0)
        self.apart = False
        self._begin()

    def _begin(self) -> None:
        for _ in range(12):
            self.now = Instant(self.now + 50 * MILLISECOND)
            self.exchange()
        assert not self.leader.gathering
        target = self.in_flight + self.in_flight // 4
        while self.opened < target:
            for _ in range(32):
                self._open()
            self.step(0)
        for _ in range(20):
            self.step(0)
        assert len(self.running) >= self.in_flight * 0.9, (
            f"{len(self.running)} of {self.in_flight} requests are running"
        )

    def _open(self) -> None:
        ticket = workload_ticket(f"request-{self.opened:026d}", self.opened, TENANTS, self.chance)
        self.members[self.opened % len(self.members)].open(ticket, self.now)
        self.opened += 1

    # Request lifecycle

    def step(self, at_once: int) -> None:
        """End `at_once` requests, open as many new ones, and start those that were granted."""
        self.now = Instant(self.now + max(1, at_once) * REQUEST_NS)
        for _ in range(min(at_once, len(self.running))):
            member, order = self.running.popleft()
            event = AttemptEnded(order.request_id, order.attempt, AttemptEnding.COMPLETED, usage=_USAGE)
            assert member.handle(event, self.now), "the client was not notified that its request ended"
            self.ended += 1
            self._open()
        self.exchange()
        while self.granted:
            member, order = self.granted.popleft()
            member.handle(FirstToken(order.request_id, order.attempt), self.now)
            member.handle(AttemptsProgressed((AttemptProgress(order.request_id, order.attempt, 20),)), self.now)
            self.running.append((member, order))

    def one_by_one(self) -> None:
        """Like `step` with one request, but with a separate entry for each message."""
        self.now = Instant(self.now + REQUEST_NS)
        member, order = self.running.popleft()
        member.handle(AttemptEnded(order.request_id, order.attempt, AttemptEnding.COMPLETED, usage=_USAGE), self.now)
        self.ended += 1
        self.exchange()
        self._open()
        self.exchange()
        while self.granted:
            member, order = self.granted.popleft()
            self.running.append((member, order))
            member.handle(FirstToken(order.request_id, order.attempt), self.now)
            self.exchange()
            member.handle(AttemptsProgressed((AttemptProgress(order.request_id, order.attempt, 20),)), self.now)
            self.exchange()

    # Measured part

    def exchange(self) -> None:
        """Send all pending messages to the scheduler, and its messages back to the members."""
        written = [
            each for member in self.members for entry in member.outgoing(self.now) for each in encode_entry(entry)
        ]
        answers = self._lead_in_parts(written) if self.apart else self._lead(written)
        names = {member.name: member for member in self.members}
        for name, each in answers:
            member = names[name]
            for order in member.receive(decode_scheduler_entry(each), self.now):
                if isinstance(order, Dispatch):
                    self.granted.append((member, order))
                else:
                    assert not isinstance(order, End), f"{order}"

    def _lead(self, written: list[bytes]) -> list[tuple[str, bytes]]:
        leader, now = self.leader, self.now
        self.entries += len(written)
        start = process_time_ns()
        for each in written:
            leader.receive(decode_member_entry(each), now)
        leader.tick(now)
        answers = [(name, each) for name, entry in leader.outgoing(now) for each in encode_entry(entry)]
        leader.next_wakeup()
        self.spent += process_time_ns() - start
        return answers

    def _lead_in_parts(self, written: list[bytes]) -> list[tuple[str, bytes]]:
        leader, now, spent = self.leader, self.now, self.reported
        start = process_time_ns()
        entries = [decode_member_entry(each) for each in written]
        read = process_time_ns()
        for entry in entries:
            leader.receive(entry, now)
        leader.tick(now)
        going = leader.outgoing(now)
        leader.next_wakeup()
        decided = process_time_ns()
        answers = [(name, each) for name, entry in going for each in encode_entry(entry)]
        spent["reading"] += read - start
        spent["deciding"] += decided - read
        spent["writing"] += process_time_ns() - decided
        return answers

    def time_parts(self, *, is_compiled: bool) -> None:
        """Measure each part separately from now on. In the compiled build, the core is measured as part of deciding."""
        self.apart = True
        if is_compiled:
            # A compiled class checks the types of its attributes, so it does not accept a wrapper of the scheduler.
            del self.reported["core"]
            return
        book = self.leader._assignments  # noqa: SLF001
        book.scheduler = cast("Scheduler", TimedScheduler(book.scheduler, self.reported))


class TimedScheduler:
    """Wrapper that measures the CPU time of a scheduler's decisions."""

    def __init__(self, scheduler: Scheduler, spent: dict[str, int]) -> None:
        self._timed, self._spent = scheduler, spent

    def handle(self, event: Event, now: Instant) -> list[Command]:
        start = process_time_ns()
        commands = self._timed.handle(event, now)
        self._spent["core"] += process_time_ns() - start
        return commands

    def next_wakeup(self) -> Instant | None:
        start = process_time_ns()
        wakeup = self._timed.next_wakeup()
        self._spent["core"] += process_time_ns() - start
        return wakeup


@dataclass(frozen=True, slots=True)
class Cost:
    us: float
    """CPU time per request in the fastest run, in microseconds."""
    over_yardstick: float
    """CPU time per request divided by the time for one round of the yardstick, as the median over pairs of slices."""


def cost_per_request(rig: LoadedCell, yardstick: Yardstick, at_once: int, requests: int) -> Cost:
    """Return the scheduler's CPU time per request."""
    costs: list[float] = []
    ratios: list[float] = []
    gc.collect()
    for _ in range(RUNS):
        spent, ended = rig.spent, rig.ended
        while rig.ended < ended + requests // RUNS:
            if at_once == 1:
                rig.one_by_one()
            else:
                rig.step(at_once)
        costs.append((rig.spent - spent) / 1_000 / (rig.ended - ended))
        ratios.append(costs[-1] / yardstick.us_per_round(requests // RUNS))
    return Cost(min(costs), median(ratios))


def costs_by_part(
    rig: LoadedCell, yardstick: Yardstick, at_once: int, requests: int, *, is_compiled: bool
) -> dict[str, Cost]:
    """Return the CPU time per request by part, without the core in the compiled build."""
    rig.time_parts(is_compiled=is_compiled)
    found: list[dict[str, float]] = []
    rounds_us: list[float] = []
    for _ in range(RUNS):
        rig.reported.update(dict.fromkeys(rig.reported, 0))
        ended = rig.ended
        while rig.ended < ended + requests // RUNS:
            rig.step(at_once)
        spent = {name: value / 1_000 / (rig.ended - ended) for name, value in rig.reported.items()}
        spent["deciding"] -= spent.get("core", 0)
        found.append(spent)
        rounds_us.append(yardstick.us_per_round(requests // RUNS))
    fastest = min(found, key=lambda each: sum(each.values()))
    return {
        name: Cost(us, median(each[name] / took for each, took in zip(found, rounds_us, strict=True)))
        for name, us in fastest.items()
    }


def main(
    words: Sequence[str] | None = None,
    *,
    in_flight_usual: int = USUAL_IN_FLIGHT,
    calm: Callable[[], None] = tune_garbage_collector,
) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cell_speed", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000, help="requests per measurement (default 10,000)")
    parser.add_argument("--curve", action="store_true", help="also vary the number of requests in flight")
    arguments = parser.parse_args(words)
    print("| in flight | batch | requests/s | µs per request | requests/s over yardstick |")
    print("|---|---|---|---|---|")
    figures: dict[str, float | None] = {}
    parts: dict[str, Cost] = {}
    for in_flight in CURVE if arguments.curve else (in_flight_usual,):
        print_progress(f"{in_flight:,} in flight, {MEMBERS} members")
        rig, yardstick = LoadedCell(in_flight), Yardstick()
        calm()
        for at_once in (64, 8, 1):
            cost = cost_per_request(rig, yardstick, at_once, arguments.requests)
            speed, ratio = 1e6 / cost.us, 1 / cost.over_yardstick
            print(f"| {in_flight:,} | {at_once} | {speed:,.0f} | {cost.us:.0f} | {ratio:.3f} |", flush=True)
            if in_flight == in_flight_usual:
                name = "requests_per_s" if at_once == 64 else f"requests_per_s_at_{at_once}"
                figures |= {name: round(speed), f"{name}_over_yardstick": round(ratio, 3)}
        if in_flight == in_flight_usual:
            parts = costs_by_part(rig, yardstick, 64, arguments.requests, is_compiled=IS_COMPILED)
        gc.unfreeze()
    if parts:
        print(table_of(parts))
    print(json.dumps(figures | part_figures(parts)))


def table_of(parts: Mapping[str, Cost]) -> str:
    rows = [f"| {name} | {part.us:.0f} | {part.over_yardstick:.3f} |" for name, part in parts.items()]
    if "core" not in parts:
        rows.append("| core | part of deciding: compiled code does not accept a scheduler that measures its time | |")
    return "\n".join(("", "| part, batch 64 | µs per request | over yardstick |", "|---|---|---|", *rows))


def part_figures(parts: Mapping[str, Cost]) -> dict[str, float | None]:
    absent = {"core_us": None, "core_over_yardstick": None}
    times = {f"{name}_us": round(part.us, 1) for name, part in parts.items()}
    return absent | times | {f"{name}_over_yardstick": round(part.over_yardstick, 3) for name, part in parts.items()}


if __name__ == "__main__":
    main()
