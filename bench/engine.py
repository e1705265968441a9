"""How much of a real engine's speed comes out of the gateway?

    just bench-engine [--assert] [--minutes M] [--real-weights] [--gateway-command COMMAND]

vLLM on CPU, first driven directly at several concurrencies to find its best one; then, at that one, the same work
directly and through the gateway in pairs whose order alternates, until the ratio is known to within 3 % or the bound on
pairs and time is reached, which is said.

What comes directly is somebody else's to the gateway, which leaves them the places that it last saw taken. So each half
begins when the gateway has seen the engine idle, and has a lead-in that is not timed, after which both sides have their
connections open.

The engine has a core to itself and client and gateway share the other: an engine takes all the CPU it gets, so on the
same core the figure would tell how the kernel shares a core, not what the gateway costs. The model has two small layers
of random weights by default, because the faster the engine, the more chunks a second the gateway must carry and the
harder the bar; real weights are several times slower and hide more.
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

from bench.command import add_common_arguments, stop_cleanly_on_sigterm, tell
from bench.confidence import PAIRS_MIN, Interval, interval_of
from bench.cores import TooFewCores, started_on, two_cores
from bench.targets import gateway
from bench.work import Done, WorkFailed, do, tasks
from testing.processes import MissingPart, ProcessFailedError
from testing.real_engines import MODEL, vllm

CONCURRENCIES = (1, 2, 4, 8, 16, 32)
REQUESTS = 96
"""In one half of a pair. A couple of seconds: the closer the halves are, the more alike are their conditions."""
SWEEP_ROUNDS = 4
PAIRS_MAX = 120
HALF_WIDTH_MAX = 0.03
RATIO_MIN = 0.97
MINUTES = 10.0
PASS_SECONDS_MAX = 300.0

Rest = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two ways to the engine."""

    name: str
    port: int
    key: str
    model: str

    def run(self, *, requests: int, at_once: int) -> Done:
        doing = do(
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

    def interval(self) -> Interval | None:
        return interval_of(self.ratios) if len(self.direct) >= PAIRS_MIN else None


def figures_of(pairs: Pairs, interval: Interval) -> dict[str, float]:
    return {
        "direct_tokens_per_s": round(mean(pairs.direct), 1),
        "gateway_tokens_per_s": round(mean(pairs.gateway), 1),
        "ratio": round(interval.ratio, 4),
        "ci_low": round(interval.low, 4),
        "ci_high": round(interval.high, 4),
    }


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    stop_cleanly_on_sigterm()
    try:
        pairs = measure(args.minutes, args.gateway_command, real_weights=args.real_weights)
    except (MissingPart, TooFewCores, WorkFailed, ProcessFailedError) as problem:
        return _problem(str(problem))
    except KeyboardInterrupt:
        return _problem("interrupted; nothing is left running", status=130)
    interval = pairs.interval()
    if interval is None:
        return _problem(f"only {len(pairs.direct)} pairs in {args.minutes:g} minutes; give more by --minutes")
    figures = figures_of(pairs, interval)
    print(table_of(pairs, interval))
    missed = args.check and figures["ratio"] < RATIO_MIN
    if missed:
        tell(f"missed: the ratio is {figures['ratio']} (target: at least {RATIO_MIN}); see docs/project/performance.md")
    print(json.dumps(figures), flush=True)
    return 1 if missed else 0


def table_of(pairs: Pairs, interval: Interval) -> str:
    verdict = "met" if interval.ratio >= RATIO_MIN else "MISSED"
    known = "" if interval.half_width <= HALF_WIDTH_MAX else f"; not known to within {HALF_WIDTH_MAX:.0%}"
    return "\n".join(
        [
            f"direct          {mean(pairs.direct):8.1f} tokens/s",
            f"through gateway {mean(pairs.gateway):8.1f} tokens/s",
            f"ratio           {interval.ratio:8.3f}   95 % between {interval.low:.3f} and {interval.high:.3f}",
            f"pairs           {len(pairs.direct):8}{known}",
            f"at least        {RATIO_MIN:8.2f}   {verdict}",
        ]
    )


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="bench-engine", description="Real vLLM through the gateway, and directly.")
    made.add_argument("--minutes", type=float, default=MINUTES, metavar="M", help="the longest time for pairs")
    made.add_argument(
        "--real-weights", action="store_true", help="SmolLM2 instead of two small layers of random weights"
    )
    add_common_arguments(made, bar=f"the ratio is below {RATIO_MIN}")
    return made


def measure(minutes: float, gateway_command: Sequence[str], *, real_weights: bool) -> Pairs:
    with both_sides(gateway_command, real_weights=real_weights) as (direct, through, rest):
        at_once = best_concurrency(direct)
        # Neither side's first pass pays for what is made once.
        for side in (direct, through):
            side.run(requests=at_once, at_once=at_once)
        return run_pairs(direct, through, at_once, rest, give_up_at=time.monotonic() + 60 * minutes)


@contextmanager
def both_sides(gateway_command: Sequence[str], *, real_weights: bool) -> Generator[tuple[Side, Side, Rest]]:
    """Both, and what is done between them."""
    cores = two_cores()
    places = max(CONCURRENCIES)
    tell(
        f"starting vLLM on core {cores.target}, which takes a minute or more; gateway and client on {cores.instruments}"
    )
    with (
        tempfile.TemporaryDirectory(prefix="headgate-bench-") as name,
        started_on(cores.target),
        vllm(max_num_seqs=places, tiny=not real_weights) as engine,
        # From here on also for this process, which is the client.
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
        tell(f"direct, {at_once:2} at once: {found[at_once]:7.1f} tokens/s")
    return max(found, key=lambda at_once: found[at_once])


def run_pairs(direct: Side, through: Side, at_once: int, rest: Rest, *, give_up_at: float) -> Pairs:
    pairs = Pairs()
    while len(pairs.direct) < PAIRS_MAX and time.monotonic() < give_up_at:
        number = len(pairs.direct)
        # Whatever grows or wears off with time favours neither side.
        order = (direct, through) if number % 2 == 0 else (through, direct)
        done: dict[str, float] = {}
        for side in order:
            rest()
            side.run(requests=at_once, at_once=at_once)
            done[side.name] = side.run(requests=REQUESTS, at_once=at_once).tokens_per_s
        pairs.direct.append(done["direct"])
        pairs.gateway.append(done["gateway"])
        interval = pairs.interval()
        known = f"; so far {interval.ratio:.3f} ± {interval.half_width:.1%}" if interval else ""
        tell(f"pair {number + 1:2}: {done['direct']:7.1f} and {done['gateway']:7.1f} tokens/s{known}")
        if interval is not None and interval.half_width <= HALF_WIDTH_MAX:
            return pairs
    tell(f"the bound on pairs or time is reached before the ratio is known to within {HALF_WIDTH_MAX:.0%}")
    return pairs


def _problem(text: str, *, status: int = 2) -> int:
    tell(f"bench-engine: {text}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
