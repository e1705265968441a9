"""What does a gateway's CPU cost with something, beside one without it?

The two are loaded in turn, pair by pair, on one core, and the generator runs on another: what else the machine does
falls on both. Each pair is in another order than the one before.
"""

from dataclasses import dataclass, replace

from bench.command import WrongAnswers, tell
from bench.cores import Cores
from bench.generator import Plan
from bench.loaded import loaded
from bench.targets import Target

REQUESTS_MIN = 20
"""Fewer in a window tell nothing."""


@dataclass(frozen=True, slots=True)
class Load:
    """What both are asked."""

    connections: int
    warm_up_s: float
    chunks: int = 0
    """Of each answer; 0 where it is not streamed."""
    pace_ms: int = 0
    tokens: int | None = None
    """Exact number of output tokens per response; None lets the engine choose."""
    metadata: dict[str, str] | None = None
    by_chunks: bool = False
    """Whether requests are reckoned by the chunks that came, since a window cuts many long streams."""
    requests_min: int = REQUESTS_MIN


def pairs_of(
    on: Target, off: Target, name: str, load: Load, *, pairs: int, seconds: float, cores: Cores
) -> list[tuple[float, float]]:
    """CPU µs per request, with and without. The figures of a single pair are not judged, so no answer need come."""
    load = replace(load, requests_min=0) if pairs == 1 else load
    found: list[tuple[float, float]] = []
    for number in range(pairs):
        order = (on, off) if number % 2 else (off, on)
        costs = {target.port: cpu_us(target, name, load, seconds, cores) for target in order}
        found.append((costs[on.port], costs[off.port]))
        told = f"{found[-1][0]:.0f} µs with, {found[-1][1]:.0f} µs without: {found[-1][0] / found[-1][1]:.3f}"
        tell(f"{name} {number + 1}/{pairs}: {told}")
    return found


def cpu_us(target: Target, name: str, load: Load, seconds: float, cores: Cores) -> float:
    plan = Plan(
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
    done = loaded(target, plan, cores, load=name)
    if done.requests < load.requests_min:
        raise WrongAnswers(f"{done.requests} answers in {seconds:g} s; give the machine to this alone and run it again")
    # Neither is zero, even if the machine stood still for the whole window.
    asked = done.chunks / load.chunks if load.by_chunks else done.requests
    return max(1, done.cpu_ns) / 1e3 / (asked or 1)
