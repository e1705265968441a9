"""Measure how many requests per second the scheduler can handle on one core.

The lifecycle of a request is an arrival, a dispatch, a first token, two progress reports and an end, passed to the
scheduler as events. Every request carries 16 hashes of its prompt prefix, every tenant has limits, and the queue is
always long: each arrival is queued, and each request that ends makes room for a queued one. As in a gateway, each
progress report covers 64 attempts. Virtual time advances at the fleet's speed, so that no request expires. The garbage
collector runs as rarely as in a gateway.

The speed of a machine varies, so fixed pure-Python work (bench/python_yardstick.py) runs in the same process in
alternating slices. The requirement is on the ratio to it.

The last line is JSON: request lifecycles per second in the usual case, that speed divided by the yardstick's rounds per
second, and the time per lifecycle with 512 endpoints divided by the time with 8.
"""

import argparse
import gc
import json
import sys
from collections import deque
from dataclasses import dataclass
from random import Random
from statistics import median
from time import process_time

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
    FirstToken,
    PolicyChanged,
    RequestArrived,
)
from headgate.core.scheduler import Scheduler
from headgate.hosts.garbage_collection import tune_garbage_collector
from headgate.model.ticket import Ticket
from headgate.model.units import (
    MILLISECOND,
    SECOND,
    ClassName,
    Duration,
    Instant,
)
from headgate.model.usage import Usage, UsageSource

OVER_YARDSTICK_MIN = 0.42
"""Minimum of request lifecycles per second divided by the yardstick's rounds per second."""
REQUESTS_PER_S_GOAL = 10_000
ENDPOINTS_RATIO_MAX = 3.0
REPORTED_AT_ONCE = 64
RUNS = 16
PLACES = 16
"""Slots per endpoint. All of them are always taken."""
STEP = Duration(1 * MILLISECOND)


@dataclass(frozen=True, slots=True)
class Size:
    tenants: int = TENANTS
    endpoints: int = ENDPOINTS
    queued: int = 10_000

    def __str__(self) -> str:
        return f"{self.tenants:,} tenants, {self.endpoints} endpoints, {self.queued:,} queued"


DEFAULT_SIZE = Size()
CURVE = (
    *(Size(queued=queued) for queued in (100, 1_000, 30_000)),
    *(Size(tenants=tenants) for tenants in (10, 100, 10_000)),
    *(Size(endpoints=endpoints) for endpoints in (8, 16, 256, 512)),
)


class LoadedScheduler:
    """A scheduler with a full fleet and a long queue, and the requests that will arrive."""

    def __init__(self, size: Size, requests: int, seed: int = 1) -> None:
        self.chance = Random(seed)
        self.size = size
        self.scheduler = Scheduler()
        self.now = Instant(1_000_000 * SECOND)
        self.running: deque[Dispatch] = deque()
        count = size.endpoints * PLACES + size.queued + requests
        self.arrivals = [RequestArrived(self._ticket(number)) for number in range(count)]
        self.arrived = 0
        self._begin()

    def _begin(self) -> None:
        size = self.size
        policy = workload_policy(size.tenants, kv_tokens=500_000)
        self.scheduler.handle(PolicyChanged(policy, "h"), self.now)
        for endpoint in workload_endpoints(size.endpoints, PLACES):
            self.scheduler.handle(EndpointJoined(endpoint), self.now)
            self.scheduler.handle(EndpointReady(endpoint.id), self.now)
        while len(self.running) < size.endpoints * PLACES:
            # Report the first token immediately; pending prompts would otherwise close the endpoint to new requests.
            for each in self._arrive():
                self.scheduler.handle(FirstToken(each.request_id, each.attempt), self.now)
        for _ in range(size.queued):
            self._arrive()

    def _ticket(self, number: int) -> Ticket:
        return workload_ticket(f"request-{number}", number, self.size.tenants, self.chance)

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
                assert isinstance(each, End), "unexpected command"
        self.running.extend(sent)
        return sent

    def run_requests(self, requests: int) -> float:
        """Return the CPU time for this number of request lifecycles, in seconds."""
        handle, running = self.scheduler.handle, self.running
        reports: deque[list[Dispatch]] = deque()
        begun: list[Dispatch] = []
        usage = Usage(300, 120, 0, UsageSource.ENGINE)
        ended = 0
        gc.collect()
        start = process_time()
        while ended < requests:
            self._arrive()
            self.now = Instant(self.now + STEP)
            oldest = running.popleft()
            event = AttemptEnded(oldest.request_id, oldest.attempt, AttemptEnding.COMPLETED, usage=usage)
            for each in self._sent(handle(event, self.now)):
                handle(FirstToken(each.request_id, each.attempt), self.now)
                begun.append(each)
            ended += 1
            if len(begun) >= REPORTED_AT_ONCE:
                # Each attempt is reported twice: with this batch and with the next.
                for batch in (*reports, begun):
                    handle(
                        AttemptsProgressed(tuple(AttemptProgress(each.request_id, each.attempt, 20) for each in batch)),
                        self.now,
                    )
                reports = deque([begun])
                begun = []
        return process_time() - start


@dataclass(frozen=True, slots=True)
class Speed:
    requests_per_s: float
    """Rate in the fastest run. Other load on the machine only adds time."""
    over_yardstick: float
    """Rate divided by the yardstick's rounds per second, as the median over pairs of slices."""


def speed_of(size: Size, requests: int, *, runs: int = RUNS) -> Speed:
    """Measure the scheduler and the yardstick in alternating slices, after a warm-up."""
    bench, yardstick = LoadedScheduler(size, (1 + runs) * requests), Yardstick()
    tune_garbage_collector()
    pairs = [(bench.run_requests(requests), yardstick.run_rounds(requests)) for _ in range(1 + runs)][1:]
    gc.unfreeze()
    held = bench.scheduler.summary().queued[ClassName("interactive")]
    assert held >= size.queued // 2, f"only {held} of {size.queued} requests are queued"
    return Speed(
        requests_per_s=requests / min(took for took, _ in pairs),
        over_yardstick=median(yardstick_took / took for took, yardstick_took in pairs),
    )


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench-core", description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=2_500, help="request lifecycles per run (default 2,500)")
    parser.add_argument("--curve", action="store_true", help="also vary queue length, tenants and endpoints")
    parser.add_argument("--assert", dest="check", action="store_true", help="exit 1 if a limit is missed")
    return parser


def main() -> None:
    arguments = parser().parse_args()
    found: dict[Size, Speed] = {}
    few, many = Size(endpoints=8), Size(endpoints=512)
    for size in (DEFAULT_SIZE, few, many, *(CURVE if arguments.curve else ())):
        if size not in found:
            speed = found[size] = speed_of(size, arguments.requests)
            print_progress(
                f"{size!s:50} {speed.requests_per_s:9,.0f} requests/s  {1e6 / speed.requests_per_s:6.0f} µs per request"
                f"  {speed.over_yardstick:6.3f} x yardstick"
            )
    ratio = found[few].requests_per_s / found[many].requests_per_s
    if arguments.curve:
        print("\n".join(table(found)))
    usual = found[DEFAULT_SIZE]
    figures = {
        "requests_per_s": round(usual.requests_per_s),
        "requests_per_s_over_yardstick": round(usual.over_yardstick, 3),
        "endpoints_512_over_8": round(ratio, 2),
    }
    print(json.dumps(figures))
    if arguments.check and (usual.over_yardstick < OVER_YARDSTICK_MIN or ratio > ENDPOINTS_RATIO_MAX):
        sys.exit(1)


def table(found: dict[Size, Speed]) -> list[str]:
    rows = ["| tenants | endpoints | queued | requests/s |", "|---|---|---|---|"]
    for size, speed in sorted(found.items(), key=lambda each: (each[0].endpoints, each[0].tenants, each[0].queued)):
        rows.append(f"| {size.tenants:,} | {size.endpoints} | {size.queued:,} | {speed.requests_per_s:,.0f} |")
    return rows


if __name__ == "__main__":
    main()
