"""How much later does the first byte come where a scheduler in another process has to be asked?

The same load, 200 requests a second at random moments, in turns on three gateways that differ in nothing but their
host: one by itself, one of a cell that another process schedules, and one that is a cell by itself and schedules it.
Each side's quietest round counts: whatever else the machine does makes a figure worse and never better.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.cell_live.gateways import Running, gateway, sending
from bench.command import tell
from bench.cores import Cores
from bench.generator import Measured
from bench.targets import upstream
from testing.stores import Server

RATE = 200.0
CHUNKS, PACE_MS = 3, 10
CONNECTIONS = 100
IN_FLIGHT_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Added:
    local_ms: dict[str, float]
    cell_ms: dict[str, float]
    same_ms: dict[str, float]
    """Where the gateway that is measured schedules too."""

    def ms(self, quantile: str) -> float:
        return round(self.cell_ms[quantile] - self.local_ms[quantile], 3)

    def same_process_ms(self, quantile: str) -> float:
        return round(self.same_ms[quantile] - self.local_ms[quantile], 3)


def measure(store: Server, folder: Path, cores: Cores, *, rounds: int, seconds: float) -> Added:
    with ExitStack() as stack:
        behind = stack.enter_context(upstream(cores.instruments)).port

        def started(name: str, core: int, cell: Mapping[str, object] | None = None, verb: str = "serve") -> Running:
            made = gateway(name, core, behind, folder, in_flight_max=IN_FLIGHT_MAX, cell=cell, verb=verb)
            return stack.enter_context(made)

        apart = {"store": store.url, "name": "apart", "gateways_schedule": False}
        started("scheduler", cores.instruments, apart, "scheduler")
        sides = {
            "local": started("local", cores.target),
            "cell": started("member", cores.target, apart),
            "same": started("alone", cores.target, {"store": store.url, "name": "alone"}),
        }
        for side in sides.values():
            side.wait_until_ready()
        found: dict[str, list[Measured]] = {name: [] for name in sides}
        for number in range(rounds):
            for name, side in sides.items():
                done = _round(side, cores.instruments, seconds, seed=number)
                found[name].append(done)
                tell(f"  added {number + 1}/{rounds} {name:6} p50 {done.first_ms['p50']:.2f} ms, "
                     f"p99 {done.first_ms['p99']:.2f} ms")  # fmt: skip
    return Added(*(_quietest(found[name]) for name in ("local", "cell", "same")))


def _round(side: Running, core: int, seconds: float, *, seed: int) -> Measured:
    load = {"connections": CONNECTIONS, "rate": RATE, "chunks": CHUNKS, "pace_ms": PACE_MS}
    with sending(side, core, warm_up_s=1.0, seconds=seconds, seed=seed, **load) as under_way:
        return under_way.measured()


def _quietest(rounds: Sequence[Measured]) -> dict[str, float]:
    return {quantile: min(done.first_ms[quantile] for done in rounds) for quantile in ("p50", "p99")}
