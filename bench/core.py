"""How many requests a second can the scheduler decide about, on one core?

A life is an arrival, a dispatch, a first token, two reports of progress and an end, told to the scheduler as a host
tells them. Every request carries 16 hashes of its prompt's beginning, every tenant has limits, and so many others wait
all the time: whoever arrives is queued, and whoever ends makes room for one of those. Reports of progress come for 64
attempts at once, as a gateway sends them. Virtual time goes on by what the fleet would take, so that nothing expires.
Garbage is collected as seldom as in a gateway.

The last line is JSON: lives a second in the usual case, and how much longer a life takes with 512 endpoints than with
8.
"""

import argparse
import gc
import json
import sys
from collections import deque
from dataclasses import dataclass
from random import Random
from time import process_time

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
    FirstToken,
    PolicyChanged,
    Progressed,
    RequestArrived,
)
from headgate.core.scheduler import Scheduler
from headgate.model.ticket import Ticket
from headgate.model.units import (
    MILLISECOND,
    SECOND,
    ClassName,
    Duration,
    Instant,
)
from headgate.model.usage import Usage, UsageSource

LIVES_MIN = 5_000
LIVES_AIM = 10_000
ENDPOINTS_RATIO_MAX = 3.0
REPORTED_AT_ONCE = 64
RUNS = 16
PLACES = 16
"""At each endpoint; all of them are taken all the time."""
STEP = Duration(1 * MILLISECOND)


@dataclass(frozen=True, slots=True)
class Size:
    tenants: int = TENANTS
    endpoints: int = ENDPOINTS
    queued: int = 10_000

    def __str__(self) -> str:
        return f"{self.tenants:,} tenants, {self.endpoints} endpoints, {self.queued:,} queued"


USUAL = Size()
CURVE = (
    *(Size(queued=queued) for queued in (100, 1_000, 30_000)),
    *(Size(tenants=tenants) for tenants in (10, 100, 10_000)),
    *(Size(endpoints=endpoints) for endpoints in (8, 16, 256, 512)),
)


class Bench:
    """A scheduler with a full fleet and a long queue, and the requests that will arrive."""

    def __init__(self, size: Size, lives: int, seed: int = 1) -> None:
        self.chance = Random(seed)
        self.size = size
        self.scheduler = Scheduler()
        self.now = Instant(1_000_000 * SECOND)
        self.running: deque[Dispatch] = deque()
        count = size.endpoints * PLACES + size.queued + lives
        self.arrivals = [RequestArrived(self._ticket(number)) for number in range(count)]
        self.arrived = 0
        self._begin()

    def _begin(self) -> None:
        size = self.size
        policy = busy_policy(size.tenants, kv_tokens=500_000)
        self.scheduler.handle(PolicyChanged(policy, "h"), self.now)
        for endpoint in busy_endpoints(size.endpoints, PLACES):
            self.scheduler.handle(EndpointJoined(endpoint), self.now)
            self.scheduler.handle(EndpointReadied(endpoint.id), self.now)
        while len(self.running) < size.endpoints * PLACES:
            # The first token at once, or the prompts that are still to be computed would close the endpoint.
            for each in self._arrive():
                self.scheduler.handle(FirstToken(each.request_id, each.attempt), self.now)
        for _ in range(size.queued):
            self._arrive()

    def _ticket(self, number: int) -> Ticket:
        return busy_ticket(f"request-{number}", number, self.size.tenants, self.chance)

    def _arrive(self) -> list[Dispatch]:
        arrival = self.arrivals[self.arrived]
        self.arrived += 1
        return self._sent(self.scheduler.handle(arrival, self.now))

    def _sent(self, commands: list[Command]) -> list[Dispatch]:
        sent: list[Dispatch] = []
        for each in commands:
            if isinstance(each, Dispatch):
                sent.append(each)
            else:
                assert isinstance(each, End), "an endpoint was lost"
        self.running.extend(sent)
        return sent

    def live(self, lives: int) -> float:
        """Seconds of CPU that so many lives take."""
        handle, running = self.scheduler.handle, self.running
        reports: deque[list[Dispatch]] = deque()
        begun: list[Dispatch] = []
        usage = Usage(300, 120, 0, UsageSource.ENGINE)
        ended = 0
        gc.collect()
        start = process_time()
        while ended < lives:
            self._arrive()
            self.now = Instant(self.now + STEP)
            oldest = running.popleft()
            event = AttemptEnded(oldest.request_id, oldest.attempt, AttemptEnding.COMPLETED, usage=usage)
            for each in self._sent(handle(event, self.now)):
                handle(FirstToken(each.request_id, each.attempt), self.now)
                begun.append(each)
            ended += 1
            if len(begun) >= REPORTED_AT_ONCE:
                # Each is reported twice: with this batch, and with the next.
                for batch in (*reports, begun):
                    handle(
                        Progressed(tuple(AttemptProgress(each.request_id, each.attempt, 20) for each in batch)),
                        self.now,
                    )
                reports = deque([begun])
                begun = []
        return process_time() - start


def lives_per_s(size: Size, lives: int, *, runs: int = RUNS) -> float:
    """Of some runs on a scheduler that has settled, the quickest: whatever else the machine does only takes time."""
    bench = Bench(size, (1 + runs) * lives)
    calm_the_collector()
    bench.live(lives)
    took = min(bench.live(lives) for _ in range(runs))
    gc.unfreeze()
    held = bench.scheduler.summary().queued[ClassName("interactive")]
    assert held >= size.queued // 2, f"{held} wait, of {size.queued}"
    return lives / took


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench-core", description=__doc__.partition("\n")[0])
    parser.add_argument("--lives", type=int, default=2_500, help="lives of each run (2,500)")
    parser.add_argument("--curve", action="store_true", help="also over queue length, tenants and endpoints")
    parser.add_argument("--assert", dest="check", action="store_true", help="exit 1 when a bar is missed")
    return parser


def main() -> None:
    arguments = parser().parse_args()
    found: dict[Size, float] = {}
    few, many = Size(endpoints=8), Size(endpoints=512)
    for size in (USUAL, few, many, *(CURVE if arguments.curve else ())):
        if size not in found:
            found[size] = lives_per_s(size, arguments.lives)
            tell(f"{size!s:50} {found[size]:9,.0f} lives/s  {1e6 / found[size]:6.0f} µs each")
    ratio = found[few] / found[many]
    if arguments.curve:
        print("\n".join(table(found)))
    print(json.dumps({"lives_per_s": round(found[USUAL]), "endpoints_512_over_8": round(ratio, 2)}))
    if arguments.check and (found[USUAL] < LIVES_MIN or ratio > ENDPOINTS_RATIO_MAX):
        sys.exit(1)


def table(found: dict[Size, float]) -> list[str]:
    rows = ["| tenants | endpoints | queued | lives/s |", "|---|---|---|---|"]
    for size, rate in sorted(found.items(), key=lambda each: (each[0].endpoints, each[0].tenants, each[0].queued)):
        rows.append(f"| {size.tenants:,} | {size.endpoints} | {size.queued:,} | {rate:,.0f} |")
    return rows


if __name__ == "__main__":
    main()
