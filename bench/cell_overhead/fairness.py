"""Measure whether a batch burst at one gateway delays interactive requests at another.

Batch requests from one gateway occupy all slots of an engine, and many more wait. Another gateway receives occasional
interactive requests, which have priority for the next free slot. Their latency is measured from when they were due to
the first byte. For comparison, one standalone gateway receives both loads. A slot becomes free every few milliseconds,
so an interactive request waits only briefly, and the wait varies little.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.cell_overhead.gateways import RunningGateway, gateway, running_load
from bench.cli import print_progress
from bench.cpu_cores import Cores
from bench.load_generator import LoadResult
from bench.targets import upstream
from testing.stores import Server

PLACES = 20
BATCH_CHUNKS, BATCH_PACE_MS = 11, 20
"""A batch request occupies its slot for 200 ms, so one of the 20 slots becomes free every 10 ms."""
BACKLOG = 200
RATE = 30.0


@dataclass(frozen=True, slots=True)
class Fairness:
    local_ms: dict[str, float]
    cell_ms: dict[str, float]

    def added_ms(self, quantile: str) -> float:
        return round(self.cell_ms[quantile] - self.local_ms[quantile], 3)


def measure(store: Server, folder: Path, cores: Cores, *, rounds: int, seconds: float) -> Fairness:
    with ExitStack() as stack:
        behind = stack.enter_context(upstream(cores.instruments)).port

        def started(name: str, cell: Mapping[str, object] | None = None) -> RunningGateway:
            how = None if cell is None else {"store": store.url, "name": "fair", "member_count": 2, **cell}
            return stack.enter_context(gateway(name, cores.target, behind, folder, in_flight_max=PLACES, cell=how))

        single = started("single")
        crowded, calm = started("crowded", {}), started("calm", {})
        for each in (single, crowded, calm):
            each.wait_until_ready()
        found: dict[str, list[LoadResult]] = {"local": [], "cell": []}
        for number in range(rounds):
            for name, batch, interactive in (("local", single, single), ("cell", crowded, calm)):
                done = _round(batch, interactive, cores.instruments, seconds, seed=number)
                found[name].append(done)
                print_progress(f"  fairness {number + 1}/{rounds} {name:6} p50 {done.first_ms['p50']:.2f} ms, "
                     f"p99 {done.first_ms['p99']:.2f} ms")  # fmt: skip
    return Fairness(*(_quietest(found[name]) for name in ("local", "cell")))


def _round(batch: RunningGateway, interactive: RunningGateway, core: int, seconds: float, *, seed: int) -> LoadResult:
    crowd = {"connections": BACKLOG, "chunks": BATCH_CHUNKS, "pace_ms": BATCH_PACE_MS}
    calls = {"connections": 40, "rate": RATE, "chunks": 1, "pace_ms": 0}
    with (
        running_load(batch, core, service_class="batch", warm_up_s=0.5, seconds=seconds + 4.0, seed=seed, **crowd),
        running_load(interactive, core, warm_up_s=2.5, seconds=seconds, seed=seed, **calls) as under_way,
    ):
        return under_way.measured()


def _quietest(rounds: Sequence[LoadResult]) -> dict[str, float]:
    return {quantile: min(done.first_ms[quantile] for done in rounds) for quantile in ("p50", "p99")}
