"""Does a burst of batch work at one gateway hold up interactive requests at another?

An engine with few places, all of them taken by batch requests of one gateway, which has many more that wait; at
another gateway an interactive request comes now and then, goes first whenever a place is free, and is timed from when
it was due to its first byte. Beside it the same on one gateway by itself that has both. A place becomes free every few
milliseconds, so what an interactive request waits for is short and hardly chance.
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

PLACES = 20
BATCH_CHUNKS, BATCH_PACE_MS = 11, 20
"""A place is held for 200 ms, so that one is free every 10 ms."""
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

        def started(name: str, cell: Mapping[str, object] | None = None) -> Running:
            how = None if cell is None else {"store": store.url, "name": "fair", "members": 2, **cell}
            return stack.enter_context(gateway(name, cores.target, behind, folder, in_flight_max=PLACES, cell=how))

        single = started("single")
        crowded, calm = started("crowded", {}), started("calm", {})
        for each in (single, crowded, calm):
            each.wait_until_ready()
        found: dict[str, list[Measured]] = {"local": [], "cell": []}
        for number in range(rounds):
            for name, batch, interactive in (("local", single, single), ("cell", crowded, calm)):
                done = _round(batch, interactive, cores.instruments, seconds, seed=number)
                found[name].append(done)
                tell(f"  fairness {number + 1}/{rounds} {name:6} p50 {done.first_ms['p50']:.2f} ms, "
                     f"p99 {done.first_ms['p99']:.2f} ms")  # fmt: skip
    return Fairness(*(_quietest(found[name]) for name in ("local", "cell")))


def _round(batch: Running, interactive: Running, core: int, seconds: float, *, seed: int) -> Measured:
    crowd = {"connections": BACKLOG, "chunks": BATCH_CHUNKS, "pace_ms": BATCH_PACE_MS}
    calls = {"connections": 40, "rate": RATE, "chunks": 1, "pace_ms": 0}
    with (
        sending(batch, core, service_class="batch", warm_up_s=0.5, seconds=seconds + 4.0, seed=seed, **crowd),
        sending(interactive, core, warm_up_s=2.5, seconds=seconds, seed=seed, **calls) as under_way,
    ):
        return under_way.measured()


def _quietest(rounds: Sequence[Measured]) -> dict[str, float]:
    return {quantile: min(done.first_ms[quantile] for done in rounds) for quantile in ("p50", "p99")}
