"""Compare a real engine's throughput through the gateway with its throughput when driven directly.

    just bench-engine [--assert] [--minutes M] [--real-weights] [--gateway-command COMMAND]

vLLM on a CPU is first driven directly at several concurrencies to find the best one. At that concurrency the same work
then runs directly and through the gateway, in pairs of alternating order. The run ends when the ratio is known to
within 3 %. If it reaches the limit on pairs or time first, it stops with a message.

The gateway counts direct requests as other clients' load and leaves the slots that it last saw taken to those clients.
Each half therefore starts once the gateway has seen the engine idle, and begins with an untimed lead-in, so that both
sides have their connections open.

The engine has a core to itself; client and gateway share the other. An engine uses all the CPU it gets, so on one core
the result would show how the kernel shares the core rather than what the gateway costs. By default the model has two
small layers of random weights: a faster engine makes the gateway carry more chunks per second, which is the harder
test. Real weights are several times slower and hide more of the cost.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from urllib.parse import urlsplit

import uvloop

from bench.cli import add_common_arguments, print_progress, report_problem, stop_cleanly_on_sigterm
from bench.cpu_cores import TooFewCores, started_on, two_cores
from bench.fixed_work import WorkFailed, WorkResult, run_tasks, tasks
from bench.targets import gateway
from headgate.simulation.report.confidence import PAIRS_MIN, RatioInterval, interval_of
from testing.processes import MissingProgram, ProcessFailedError
from testing.real_engines import MODEL, vllm

CONCURRENCIES = (1, 2, 4, 8, 16, 32)
REQUESTS = 96
"""Number of requests in one half of a pair. A half takes about two seconds, so that both halves run under similar
conditions.
"""
SWEEP_ROUNDS = 4
PAIRS_MAX = 120
HALF_WIDTH_MAX = 0.03
RATIO_MIN = 0.97
MINUTES = 10.0
PASS_SECONDS_MAX = 300.0

Rest = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two paths to the engine: direct or through the gateway."""

    name: str
    port: int
    key: str
    model: str

    def run(self, *, requests: int, at_once: int) -> WorkResult:
        doing = run_tasks(
            tasks(requests),
            port=self.port,
            key=self.key,
            model=self.model,
            at_once=at_once,
            seconds_max=PASS_SECONDS_MAX,
        )
        try:
            return uvloop.run(doing)
        except WorkFailed as failed:
            raise WorkFailed(f"{self.name}: {failed}") from failed


@dataclass(slots=True)
class Pairs:
    direct: list[float] = field(default_factory=list[float])
    gateway: list[float] = field(default_factory=list[float])

    @property
    def ratios(self) -> list[float]:
        return [through / straight for through, straight in zip(self.gateway, self.direct, strict=True)]

    def interval(self) -> RatioInterval | None:
        return interval_of(self.ratios) if len(self.direct) >= PAIRS_MIN else None


def figures_of(pairs: Pairs, interval: RatioInterval) -> dict[str, float]:
    return {
        "direct_tokens_per_s": round(mean(pairs.direct), 1),
        "gateway_tokens_per_s": round(mean(pairs.gateway), 1),
        "ratio": round(interval.estimate, 4),
        "ci_low": round(interval.low, 4),
        "ci_high": round(interval.high, 4),
    }


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    stop_cleanly_on_sigterm()
    try:
        pairs = measure(args.minutes, args.gateway_command, real_weights=args.real_weights)
    except (MissingProgram, TooFewCores, WorkFailed, ProcessFailedError) as problem:
        return report_problem("bench-engine", str(problem))
    except KeyboardInterrupt:
        return report_problem("bench-engine", "interrupted; all processes were stopped", status=130)
    interval = pairs.interval()
    if interval is None:
        few = f"only {len(pairs.direct)} pairs in {args.minutes:g} minutes; increase --minutes"
        return report_problem("bench-engine", few)
    figures = figures_of(pairs, interval)
    print(table_of(pairs, interval))
    missed = args.check and figures["ratio"] < RATIO_MIN
    if missed:
        print_progress(
            f"missed: the ratio is {figures['ratio']} (target: at least {RATIO_MIN}); see docs/project/performance.md"
        )
    print(json.dumps(figures), flush=True)
    return 1 if missed else 0


def table_of(pairs: Pairs, interval: RatioInterval) -> str:
    verdict = "met" if interval.estimate >= RATIO_MIN else "MISSED"
    known = "" if interval.half_width <= HALF_WIDTH_MAX else f"; not known to within {HALF_WIDTH_MAX:.0%}"
    return "\n".join(
        [
            f"direct          {mean(pairs.direct):8.1f} tokens/s",
            f"through gateway {mean(pairs.gateway):8.1f} tokens/s",
            f"ratio           {interval.estimate:8.3f}   95 % interval {interval.low:.3f} to {interval.high:.3f}",
            f"pairs           {len(pairs.direct):8}{known}",
            f"minimum         {RATIO_MIN:8.2f}   {verdict}",
        ]
    )


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="bench-engine", description="Compare vLLM through the gateway with direct vLLM."
    )
    made.add_argument(
        "--minutes", type=float, default=MINUTES, metavar="M", help=f"time limit for the pairs (default {MINUTES:g})"
    )
    made.add_argument(
        "--real-weights", action="store_true", help="use SmolLM2 instead of two small layers of random weights"
    )
    add_common_arguments(made, bar=f"the ratio is below {RATIO_MIN}")
    return made


def measure(minutes: float, gateway_command: Sequence[str], *, real_weights: bool) -> Pairs:
    with both_sides(gateway_command, real_weights=real_weights) as (direct, through, rest):
        at_once = best_concurrency(direct)
        # Warm up both sides, so that one-time costs are not measured.
        for side in (direct, through):
            side.run(requests=at_once, at_once=at_once)
        return run_pairs(direct, through, at_once, rest, give_up_at=time.monotonic() + 60 * minutes)


@contextmanager
def both_sides(gateway_command: Sequence[str], *, real_weights: bool) -> Generator[tuple[Side, Side, Rest]]:
    """Start the engine and the gateway. Yield both sides and a function that waits until the engine is idle."""
    cores = two_cores()
    places = max(CONCURRENCIES)
    print_progress(
        f"starting vLLM on core {cores.target} (a minute or more); gateway and client on core {cores.instruments}"
    )
    with (
        tempfile.TemporaryDirectory(prefix="headgate-bench-") as name,
        started_on(cores.target),
        vllm(max_num_seqs=places, tiny=not real_weights) as engine,
        # This also pins the current process, which is the client.
        started_on(cores.instruments),
        gateway(
            cores.instruments,
            engine.url,
            Path(name) / "gateway",
            command=gateway_command,
            served_model=MODEL,
            in_flight_max=places,
        ) as target,
    ):
        port = urlsplit(engine.url).port
        assert port is not None
        through = Side("gateway", target.port, target.key, target.model)
        yield Side("direct", port, "none", MODEL), through, target.wait_until_idle


def best_concurrency(direct: Side) -> int:
    direct.run(requests=max(CONCURRENCIES), at_once=max(CONCURRENCIES))
    found: dict[int, float] = {}
    for at_once in CONCURRENCIES:
        found[at_once] = direct.run(requests=SWEEP_ROUNDS * at_once, at_once=at_once).tokens_per_s
        print_progress(f"direct, {at_once:2} concurrent: {found[at_once]:7.1f} tokens/s")
    return max(found, key=lambda at_once: found[at_once])


def run_pairs(direct: Side, through: Side, at_once: int, rest: Rest, *, give_up_at: float) -> Pairs:
    pairs = Pairs()
    while len(pairs.direct) < PAIRS_MAX and time.monotonic() < give_up_at:
        number = len(pairs.direct)
        # Alternate the order, so that drift favours neither side.
        order = (direct, through) if number % 2 == 0 else (through, direct)
        done: dict[str, float] = {}
        for side in order:
            rest()
            side.run(requests=at_once, at_once=at_once)
            done[side.name] = side.run(requests=REQUESTS, at_once=at_once).tokens_per_s
        pairs.direct.append(done["direct"])
        pairs.gateway.append(done["gateway"])
        interval = pairs.interval()
        known = f"; so far {interval.estimate:.3f} ± {interval.half_width:.1%}" if interval else ""
        print_progress(f"pair {number + 1:2}: {done['direct']:7.1f} and {done['gateway']:7.1f} tokens/s{known}")
        if interval is not None and interval.half_width <= HALF_WIDTH_MAX:
            return pairs
    print_progress(f"reached the limit on pairs or time before the ratio was known to within {HALF_WIDTH_MAX:.0%}")
    return pairs


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
