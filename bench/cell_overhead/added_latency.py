"""Measure the time to first byte that a scheduler in another process adds.

The same load, 200 requests per second at random times, runs in turn against three gateways that differ only in their
scheduler host: a standalone gateway, a member of a cell scheduled by another process, and the only member of a cell,
which also schedules it. Each side's best round counts, because other load on the machine can only make a result worse.
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

RATE = 200.0
CHUNKS, PACE_MS = 3, 10
CONNECTIONS = 100
IN_FLIGHT_MAX = 1_000


@dataclass(frozen=True, slots=True)
class AddedLatency:
    local_ms: dict[str, float]
    cell_ms: dict[str, float]
    same_ms: dict[str, float]
    """Time to first byte if the measured gateway is also the scheduler."""

    def ms(self, quantile: str) -> float:
        return round(self.cell_ms[quantile] - self.local_ms[quantile], 3)

    def same_process_ms(self, quantile: str) -> float:
        return round(self.same_ms[quantile] - self.local_ms[quantile], 3)


def measure(store: Server, folder: Path, cores: Cores, *, rounds: int, seconds: float) -> AddedLatency:
    with ExitStack() as stack:
        behind = stack.enter_context(upstream(cores.instruments)).port

        def started(
            name: str, core: int, cell: Mapping[str, object] | None = None, verb: str = "serve"
        ) -> RunningGateway:
            made = gateway(name, core, behind, folder, in_flight_max=IN_FLIGHT_MAX, cell=cell, verb=verb)
            return stack.enter_context(made)

        apart = {"store": store.url, "name": "apart", "gateways_are_candidates": False}
        started("scheduler", cores.instruments, apart, "scheduler")
        sides = {
            "local": started("local", cores.target),
            "cell": started("member", cores.target, apart),
            "same": started("alone", cores.target, {"store": store.url, "name": "alone"}),
        }
        for side in sides.values():
            side.wait_until_ready()
        found: dict[str, list[LoadResult]] = {name: [] for name in sides}
        for number in range(rounds):
            for name, side in sides.items():
                done = _round(side, cores.instruments, seconds, seed=number)
                found[name].append(done)
                print_progress(f"  added {number + 1}/{rounds} {name:6} p50 {done.first_ms['p50']:.2f} ms, "
                     f"p99 {done.first_ms['p99']:.2f} ms")  # fmt: skip
    return AddedLatency(*(_quietest(found[name]) for name in ("local", "cell", "same")))


def _round(side: RunningGateway, core: int, seconds: float, *, seed: int) -> LoadResult:
    load = {"connections": CONNECTIONS, "rate": RATE, "chunks": CHUNKS, "pace_ms": PACE_MS}
    with running_load(side, core, warm_up_s=1.0, seconds=seconds, seed=seed, **load) as under_way:
        return under_way.measured()


def _quietest(rounds: Sequence[LoadResult]) -> dict[str, float]:
    return {quantile: min(done.first_ms[quantile] for done in rounds) for quantile in ("p50", "p99")}
