"""Compare a gateway's CPU time with and without a feature.

Two gateways are loaded in turn on one core, pair by pair, while the generator runs on another, so that other load on
the machine affects both. The order alternates from pair to pair.
"""

from dataclasses import dataclass, replace

from bench.cli import FailedRequests, print_progress
from bench.cpu_cores import Cores
from bench.load_generator import LoadPlan
from bench.run_load import run_load
from bench.targets import Target

REQUESTS_MIN = 20
"""Minimum number of requests in a window. With fewer requests, the result is meaningless."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load for both gateways."""

    connections: int
    warm_up_s: float
    chunks: int = 0
    """Number of chunks per response; 0 if the response is not streamed."""
    pace_ms: int = 0
    tokens: int | None = None
    """Exact number of output tokens per response; None lets the engine choose."""
    metadata: dict[str, str] | None = None
    by_chunks: bool = False
    """Derive the number of requests from the chunks received, because the window cuts off many long streams."""
    requests_min: int = REQUESTS_MIN


def pairs_of(
    on: Target, off: Target, name: str, load: Load, *, pairs: int, seconds: float, cores: Cores
) -> list[tuple[float, float]]:
    """Return pairs of CPU time per request in microseconds, with and without the feature.

    A single pair is only a smoke test, so it does not need any completed requests.
    """
    load = replace(load, requests_min=0) if pairs == 1 else load
    found: list[tuple[float, float]] = []
    for number in range(pairs):
        order = (on, off) if number % 2 else (off, on)
        costs = {target.port: cpu_us(target, name, load, seconds, cores) for target in order}
        found.append((costs[on.port], costs[off.port]))
        told = f"{found[-1][0]:.0f} µs with, {found[-1][1]:.0f} µs without: {found[-1][0] / found[-1][1]:.3f}"
        print_progress(f"{name} {number + 1}/{pairs}: {told}")
    return found


def cpu_us(target: Target, name: str, load: Load, seconds: float, cores: Cores) -> float:
    plan = LoadPlan(
        port=target.port,
        key=target.key,
        model=target.model,
        pids=target.pids,
        core=cores.target,
        seconds=seconds,
        connections=load.connections,
        warm_up_s=load.warm_up_s,
        chunks=load.chunks,
        pace_ms=load.pace_ms,
        tokens=load.tokens,
        metadata=load.metadata,
    )
    done = run_load(target, plan, cores, load=name)
    if done.requests < load.requests_min:
        raise FailedRequests(
            f"only {done.requests} responses in {seconds:g} s; the minimum is {load.requests_min}. "
            "Stop other work on this machine and try again."
        )
    # Neither value may be zero, even if the machine stalled for the entire window.
    asked = done.chunks / load.chunks if load.by_chunks else done.requests
    return max(1, done.cpu_ns) / 1e3 / (asked or 1)
