"""Measures streams through real gateways of a cell while its scheduler is killed.

Two gateways relay streams from an engine that does no computation. The scheduler is a process without clients. It is
killed while all streams are open, and another candidate takes over. Every stream must be complete.
"""

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.cell_overhead.gateways import gateway, running_load
from bench.cpu_cores import Cores, cpu_ns_between, cpu_times
from bench.targets import upstream
from testing.stores import Server

CHUNKS_PER_S = 10
ROUNDS = 3
"""Number of streams on each connection, one after another."""


@dataclass(frozen=True, slots=True)
class HttpStreams:
    http_open: int
    http_ended: int
    """Streams that ended after the warm-up."""
    http_lost: int
    http_first_ms_p50: float
    """Time to the first byte at the gateway where it is longer."""
    http_first_ms_p99: float
    http_leader_cores: float
    """CPU time of the scheduler per second, until it is killed."""


def measure(store: Server, cores: Cores, *, opened: int, stream_s: float) -> HttpStreams:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-streams-")))
        engine = stack.enter_context(upstream(cores.instruments)).port
        how = {"store": store.url, "name": "http", "member_count": 2}
        names = {"scheduler-1": "scheduler", "scheduler-2": "scheduler", "gw-1": "serve", "gw-2": "serve"}
        running = {
            name: stack.enter_context(
                gateway(name, cores.target, engine, folder, in_flight_max=2 * opened, cell=how, verb=verb)
            )
            for name, verb in names.items()
        }
        for each in running.values():
            each.wait_until_ready()
        loads = [
            stack.enter_context(
                running_load(
                    running[name],
                    cores.instruments,
                    connections=opened // 2,
                    chunks=max(1, round(stream_s * CHUNKS_PER_S)),
                    pace_ms=1_000 // CHUNKS_PER_S,
                    warm_up_s=stream_s,
                    seconds=(ROUNDS - 1) * stream_s,
                    seed=seed,
                )
            )
            for seed, name in enumerate(("gw-1", "gw-2"))
        ]
        leader = next(each for each in running.values() if each.status()["cell"]["leads"])
        before, began_s = cpu_times([leader.process.pid]), time.monotonic()
        time.sleep(1.5 * stream_s)
        leader_ns, took_s = cpu_ns_between(before, cpu_times([leader.process.pid])), time.monotonic() - began_s
        leader.process.kill()
        done = [each.result() for each in loads]
    return HttpStreams(
        http_open=opened,
        http_ended=sum(each.requests for each in done),
        http_lost=sum(each.failed for each in done),
        http_first_ms_p50=max(each.first_ms["p50"] for each in done),
        http_first_ms_p99=max(each.first_ms["p99"] for each in done),
        http_leader_cores=round(leader_ns / 1e9 / took_s, 3),
    )
