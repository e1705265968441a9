"""How many requests a second can the scheduler of a cell carry, on one core?

    python -m bench.cell_speed [--curve] [--requests N]

Members without HTTP tell one `Leader` of their requests, through the real codec and without a store: each request
arrives, is granted, begins to answer, is reported on once and ends. Every request carries 16 hashes of its prompt's
beginning and every tenant has limits, as in `bench.core`; all places are taken all the time, and a quarter as many
wait. What the scheduler does is measured, and nothing of what the members do: it reads entries, decides, and writes
entries.

How much of it goes in one entry depends on how often a member sends. `at once` is how many requests go through one step
of their lives between two sendings, over all members; with 1, each message is an entry of its own.

The last line is JSON: requests a second with 64 at once and one by one, and what a request costs, by part.
"""

import argparse
import gc
import json
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from time import process_time_ns

from bench.busy import ENDPOINTS, TENANTS, busy_endpoints, busy_policy, busy_ticket
from bench.command import tell
from headgate.cli.serve import calm_the_collector
from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptProgress,
    EndpointJoined,
    EndpointReadied,
    Event,
    FirstToken,
    PolicyChanged,
    Progressed,
)
from headgate.core.scheduler import Scheduler
from headgate.hosts.cell.leader.leader import Leader
from headgate.hosts.cell.member.member import Member
from headgate.hosts.cell.protocol.codec import encoded, member_entry, scheduler_entry
from headgate.hosts.cell.protocol.endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import Epoch, Share
from headgate.model.units import (
    MILLISECOND,
    SECOND,
    Duration,
    Instant,
)
from headgate.model.usage import Usage, UsageSource

MEMBERS = 8
USUAL_IN_FLIGHT = 1_000
CURVE = (100, 500, 1_000, 2_000, 5_000)
RUNS = 25
"""Of which the quickest counts: whatever else the machine does only takes time."""
REQUEST_NS = Duration(SECOND // 4_000)
"""Of virtual time: so fast requests come and go."""
_USAGE = Usage(300, 120, 0, UsageSource.ENGINE)


class Rig:
    """One scheduler and its members, with all places taken."""

    def __init__(self, in_flight: int, *, members: int = MEMBERS, seed: int = 1) -> None:
        self.chance = Random(seed)
        self.now = Instant(1_000_000 * SECOND)
        self.in_flight = in_flight
        places = -(-in_flight // ENDPOINTS)
        rules = PolicyChanged(busy_policy(TENANTS, kv_tokens=5_000_000), "h")
        endpoints = KnownEndpoints()
        for endpoint in busy_endpoints(ENDPOINTS, places):
            endpoints.note(EndpointJoined(endpoint))
            endpoints.note(EndpointReadied(endpoint.id))
        self.leader = Leader(Epoch(1, "one"), rules, endpoints, None, self.now)
        self.members = [Member(f"g{each}", 1, self.now, share=Share(each, members)) for each in range(members)]
        for member in self.members:
            member.tell(rules, self.now)
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
        assert len(self.running) >= self.in_flight * 0.9, f"{len(self.running)} run, of {self.in_flight}"

    def _open(self) -> None:
        ticket = busy_ticket(f"request-{self.opened:026d}", self.opened, TENANTS, self.chance)
        self.members[self.opened % len(self.members)].open(ticket, self.now)
        self.opened += 1

    # Lives

    def step(self, at_once: int) -> None:
        """So many requests come, begin to answer and end."""
        self.now = Instant(self.now + max(1, at_once) * REQUEST_NS)
        for _ in range(min(at_once, len(self.running))):
            member, order = self.running.popleft()
            event = AttemptEnded(order.request_id, order.attempt, AttemptEnding.COMPLETED, usage=_USAGE)
            assert member.tell(event, self.now), "the end of a request was not told to its caller"
            self.ended += 1
            self._open()
        self.exchange()
        while self.granted:
            member, order = self.granted.popleft()
            member.tell(FirstToken(order.request_id, order.attempt), self.now)
            member.tell(Progressed((AttemptProgress(order.request_id, order.attempt, 20),)), self.now)
            self.running.append((member, order))

    def one_by_one(self) -> None:
        """As `step` with one request, and everything that happens is an entry of its own."""
        self.now = Instant(self.now + REQUEST_NS)
        member, order = self.running.popleft()
        member.tell(AttemptEnded(order.request_id, order.attempt, AttemptEnding.COMPLETED, usage=_USAGE), self.now)
        self.ended += 1
        self.exchange()
        self._open()
        self.exchange()
        while self.granted:
            member, order = self.granted.popleft()
            self.running.append((member, order))
            member.tell(FirstToken(order.request_id, order.attempt), self.now)
            self.exchange()
            member.tell(Progressed((AttemptProgress(order.request_id, order.attempt, 20),)), self.now)
            self.exchange()

    # What is measured

    def exchange(self) -> None:
        """Everybody says what is to be said: to the scheduler, and then back."""
        written = [each for member in self.members for entry in member.outgoing(self.now) for each in encoded(entry)]
        answers = self._lead_in_parts(written) if self.apart else self._lead(written)
        names = {member.name: member for member in self.members}
        for name, each in answers:
            member = names[name]
            for order in member.receive(scheduler_entry(each), self.now):
                if isinstance(order, Dispatch):
                    self.granted.append((member, order))
                else:
                    assert not isinstance(order, End), f"{order}"

    def _lead(self, written: list[bytes]) -> list[tuple[str, bytes]]:
        leader, now = self.leader, self.now
        self.entries += len(written)
        start = process_time_ns()
        for each in written:
            leader.receive(member_entry(each), now)
        leader.tick(now)
        answers = [(name, each) for name, entry in leader.outgoing(now) for each in encoded(entry)]
        leader.next_wakeup()
        self.spent += process_time_ns() - start
        return answers

    def _lead_in_parts(self, written: list[bytes]) -> list[tuple[str, bytes]]:
        leader, now, spent = self.leader, self.now, self.reported
        start = process_time_ns()
        entries = [member_entry(each) for each in written]
        read = process_time_ns()
        for entry in entries:
            leader.receive(entry, now)
        leader.tick(now)
        going = leader.outgoing(now)
        leader.next_wakeup()
        decided = process_time_ns()
        answers = [(name, each) for name, entry in going for each in encoded(entry)]
        spent["reading"] += read - start
        spent["deciding"] += decided - read
        spent["writing"] += process_time_ns() - decided
        return answers

    def watch_the_core(self) -> None:
        """Measures the parts from here on, and what of them is the core's."""
        self.apart = True
        book = self.leader._book  # noqa: SLF001
        book.scheduler = Timed(book.scheduler, self.reported)


class Timed(Scheduler):
    """A scheduler that says how long it takes to decide."""

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


def measured(rig: Rig, at_once: int, requests: int) -> float:
    """Microseconds of the scheduler's CPU for one request; of some runs the quickest."""
    best = float("inf")
    gc.collect()
    for _ in range(RUNS):
        spent, ended = rig.spent, rig.ended
        while rig.ended < ended + requests // RUNS:
            if at_once == 1:
                rig.one_by_one()
            else:
                rig.step(at_once)
        best = min(best, (rig.spent - spent) / 1_000 / (rig.ended - ended))
    return best


def parts(rig: Rig, at_once: int, requests: int) -> dict[str, float]:
    """What of it is spent where, in the quickest of some runs."""
    rig.watch_the_core()
    found: list[dict[str, float]] = []
    for _ in range(RUNS):
        rig.reported.update(dict.fromkeys(rig.reported, 0))
        ended = rig.ended
        while rig.ended < ended + requests // RUNS:
            rig.step(at_once)
        found.append({name: value / 1_000 / (rig.ended - ended) for name, value in rig.reported.items()})
    spent = min(found, key=lambda each: each["reading"] + each["deciding"] + each["writing"])
    spent["deciding"] -= spent["core"]
    return spent


def main(
    words: Sequence[str] | None = None,
    *,
    in_flight_usual: int = USUAL_IN_FLIGHT,
    calm: Callable[[], None] = calm_the_collector,
) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cell_speed", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000, help="of each measurement (10,000)")
    parser.add_argument("--curve", action="store_true", help="also over what is in flight")
    arguments = parser.parse_args(words)
    print("| in flight | at once | requests/s | µs each |")
    print("|---|---|---|---|")
    figures: dict[str, float] = {}
    for in_flight in CURVE if arguments.curve else (in_flight_usual,):
        tell(f"{in_flight:,} in flight, {MEMBERS} members")
        rig = Rig(in_flight)
        calm()
        for at_once in (64, 8, 1):
            cost = measured(rig, at_once, arguments.requests)
            print(f"| {in_flight:,} | {at_once} | {1e6 / cost:,.0f} | {cost:.0f} |", flush=True)
            if in_flight == in_flight_usual:
                figures["requests_per_s" if at_once == 64 else f"requests_per_s_at_{at_once}"] = round(1e6 / cost)
        if in_flight == in_flight_usual:
            spent = parts(rig, 64, arguments.requests)
            tell(", ".join(f"{name} {value:.0f} µs" for name, value in spent.items()))
            figures |= {f"{name}_us": round(value, 1) for name, value in spent.items()}
        gc.unfreeze()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
