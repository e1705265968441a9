"""Measure the cost of passing a scheduler's counters to its successor, and their size.

Tenants with limits each complete some requests. Then the counters are exported, encoded, decoded and restored by
another scheduler. They are also exported again after a few tenants have changed, as happens in regular operation. The
last line is one JSON object for the largest number of tenants.

Usage: python -m bench.snapshot_cost [--tenants N ...]
"""

import argparse
import json
import sys
from random import Random
from time import perf_counter

import msgspec

from headgate.core.counters import Counters
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    EndpointJoined,
    EndpointReady,
    PolicyChanged,
    RequestArrived,
)
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import Endpoint
from headgate.model.limits import Limits
from headgate.model.policy import Model, Policy, Pool, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.ticket import Api, Ticket
from headgate.model.units import MILLISECOND, ClassName, EndpointId, Instant, ModelName, PoolName, RequestId, TenantId
from headgate.model.usage import Usage, UsageSource

ENDPOINTS = 32
ANSWERS_EACH = 20
"""Responses per tenant, enough for the scheduler to rely on the tenant's own lengths."""
RUNS = 5
SINCE = 1_000
"""Number of responses between two counter exports, equal to one second of traffic in a large cell."""


class ServedScheduler:
    """A scheduler that serves requests from many tenants."""

    def __init__(self, tenants: int) -> None:
        self.names = [TenantId(f"org{number // 10}/key{number}") for number in range(tenants)]
        limits = Limits(requests_per_minute=600, tokens_per_minute=100_000, concurrency=20)
        self.policy = Policy(
            classes=(ServiceClass(ClassName("interactive"), 0),),
            tenants=tuple(Tenant(name, limits=limits) for name in self.names),
            pools=(Pool(PoolName("p")),),
            models=(Model(ModelName("m"), (PoolName("p"),)),),
        )
        self.scheduler, self.now, self.count, self.chance = Scheduler(), Instant(10**18), 0, Random("1 counters")
        self.scheduler.handle(PolicyChanged(self.policy, "bench"), self.now)
        for number in range(ENDPOINTS):
            endpoint = Endpoint(EndpointId(f"e{number}"), PoolName("p"), in_flight_max=64)
            self.scheduler.handle(EndpointJoined(endpoint), self.now)
            self.scheduler.handle(EndpointReady(endpoint.id), self.now)

    def answer(self, answers: int) -> None:
        for _ in range(answers):
            self.count += 1
            self.now = Instant(self.now + MILLISECOND)
            length = self.chance.randrange(100, 4_000)
            name, request_id = self.names[self.count % len(self.names)], RequestId(f"r{self.count}")
            ticket = Ticket(request_id, Api.CHAT, ModelName("m"), name, stream=True, prompt_bytes=length)
            self.scheduler.handle(RequestArrived(ticket), self.now)
            usage = Usage(ticket.prompt_bytes // 4, round(self.chance.lognormvariate(5, 1)), 0, UsageSource.ENGINE)
            self.scheduler.handle(AttemptEnded(request_id, 1, AttemptEnding.COMPLETED, usage=usage), self.now)

    def successor(self) -> Scheduler:
        scheduler = Scheduler()
        scheduler.handle(PolicyChanged(self.policy, "bench"), self.now)
        return scheduler


def measure(tenants: int) -> dict[str, float]:
    life = ServedScheduler(tenants)
    life.answer(ANSWERS_EACH * tenants)
    first_ms = _took_ms(lambda: life.scheduler.counters(life.now))
    again_ms: list[float] = []
    for _ in range(RUNS):
        life.answer(SINCE)
        again_ms.append(_took_ms(lambda: life.scheduler.counters(life.now)))
    counters = life.scheduler.counters(life.now)
    written = msgspec.msgpack.encode(counters)
    write_ms = min(_took_ms(lambda: msgspec.msgpack.encode(counters)) for _ in range(RUNS))
    read = msgspec.msgpack.decode(written, type=Counters)
    assert read == counters, "the decoded counters differ from the encoded ones"
    successors = [life.successor() for _ in range(RUNS)]
    restore_ms = min(_took_ms(lambda each=each: each.restore(read, life.now)) for each in successors)
    successor_ms = min(_took_ms(lambda each=each: each.counters(life.now)) for each in successors)
    return {
        "tenants": tenants,
        "first_ms": round(first_ms, 1),
        "repeat_ms": round(min(again_ms), 1),
        "write_ms": round(write_ms, 1),
        "restore_ms": round(restore_ms, 1),
        "successor_ms": round(successor_ms, 1),
        "bytes": len(written),
    }


def _took_ms(act: object) -> float:
    assert callable(act)
    began = perf_counter()
    act()
    return 1_000 * (perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench-counters", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--tenants", type=int, nargs="+", default=[100, 1_000, 10_000], help="tenant counts, one run for each"
    )
    figures: dict[str, float] = {}
    sys.stdout.write("| tenants | first export | next export | encode | restore | successor's export | bytes |\n")
    sys.stdout.write("|---|---|---|---|---|---|---|\n")
    for tenants in parser.parse_args().tenants:
        sys.stderr.write(f"{tenants} tenants\n")
        figures = measure(tenants)
        sys.stdout.write(
            f"| {tenants:,} | {figures['first_ms']} ms | {figures['repeat_ms']} ms | {figures['write_ms']} ms "
            f"| {figures['restore_ms']} ms | {figures['successor_ms']} ms | {figures['bytes']:,} |\n"
        )
    sys.stdout.write(f"{json.dumps(figures)}\n")


if __name__ == "__main__":
    main()
