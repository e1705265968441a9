"""What does the gateway's way through cost, beside nginx's and beside none?

    just bench-relay [--quick] [--assert] [--seconds S] [--gateway-command COMMAND]

One upstream, and before it in turn nothing, nginx and the gateway. What is measured runs on one core, upstream and load
generator on another. Each measure is taken three times, the targets one after the other in each round, and the quietest
of the three counts: whatever else the machine does makes a figure worse and never better.

Progress goes to stderr; to stdout a table for people and, as the last line, the figures as JSON.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.bars import MUST, missed_in_ci
from bench.command import WrongAnswers, add_common_arguments, stop_cleanly_on_sigterm, tell
from bench.cores import Cores, TooFewCores, two_cores
from bench.generator import Measured, Plan
from bench.loaded import loaded
from bench.targets import Target, find_nginx, gateway, nginx, upstream
from testing.processes import MissingPart, ProcessFailedError

ROUNDS = 3
SECONDS = 8.0
QUICK_SECONDS = 2.5
REQUESTS_AT_ONCE = 16
STREAMS = 200
STREAM_CHUNKS = 200
STREAM_PACE_MS = 45
KEEPS_UP_SHARE_MIN = 0.97
"""Of the chunks that the upstream sends in a window, so many must arrive in it; else the target was full."""
FIRST_TOKEN_RATE = 100.0
OTHERS_SHARE_MAX = 0.05

FIGURES = (
    "requests_per_s",
    "upstream_requests_per_s",
    "cpu_us_per_request",
    "request_ratio_to_nginx",
    "cpu_us_per_chunk",
    "nginx_cpu_us_per_chunk",
    "chunk_ratio_to_nginx",
    "added_ttft_ms_p50",
    "added_ttft_ms_p99",
)


@dataclass(frozen=True, slots=True)
class Measure:
    """One kind of load, and what of it is shown while it runs."""

    name: str
    targets: tuple[str, ...]
    plan: Mapping[str, float]
    shown: Callable[[Measured], str]


MEASURES = (
    Measure(
        "requests",
        ("upstream", "nginx", "gateway"),
        {"connections": REQUESTS_AT_ONCE, "warm_up_s": 0.5},
        lambda done: f"{done.requests / done.seconds:,.0f}/s, {cpu_us_per_request(done):.0f} µs of CPU each",
    ),
    Measure(
        "chunks",
        ("nginx", "gateway"),
        {"connections": STREAMS, "chunks": STREAM_CHUNKS, "pace_ms": STREAM_PACE_MS, "warm_up_s": 1.5},
        lambda done: f"{done.chunks / done.seconds:,.0f}/s, {cpu_us_per_chunk(done):.1f} µs of CPU each",
    ),
    Measure(
        "first tokens",
        ("upstream", "gateway"),
        {"connections": 150, "rate": FIRST_TOKEN_RATE, "chunks": 20, "pace_ms": 20, "warm_up_s": 0.7},
        lambda done: f"p50 {done.first_ms['p50']:.2f} ms, p99 {done.first_ms['p99']:.2f} ms",
    ),
)


@dataclass(slots=True)
class Results:
    """What each measure gave for each target, one entry per round."""

    of: dict[tuple[str, str], list[Measured]] = field(default_factory=dict)

    def add(self, measure: str, target: str, done: Measured) -> None:
        self.of.setdefault((measure, target), []).append(done)

    def least(self, measure: str, target: str, figure: Callable[[Measured], float]) -> float:
        return min(figure(done) for done in self.of[measure, target])

    def most(self, measure: str, target: str, figure: Callable[[Measured], float]) -> float:
        return max(figure(done) for done in self.of[measure, target])

    def others_share(self) -> float:
        """What other processes took of the target's core, over all rounds."""
        every = [done.others_share for (_, target), all_ in self.of.items() if target != "upstream" for done in all_]
        return sum(every) / len(every)


def cpu_us_per_request(done: Measured) -> float:
    return done.cpu_ns / 1e3 / max(1, done.requests)


def cpu_us_per_chunk(done: Measured) -> float:
    return done.cpu_ns / 1e3 / max(1, done.chunks)


def requests_per_s(done: Measured) -> float:
    return done.requests / done.seconds


def figures_of(results: Results) -> dict[str, float]:
    chunk_us, request_us = (
        {name: results.least(measure, name, figure) for name in ("nginx", "gateway")}
        for measure, figure in (("chunks", cpu_us_per_chunk), ("requests", cpu_us_per_request))
    )

    def added_ms(quantile: str) -> float:
        # Each side's quietest round: the difference of one pair would be best where the upstream alone was disturbed.
        gateway_ms, upstream_ms = (
            results.least("first tokens", name, lambda done: done.first_ms[quantile])
            for name in ("gateway", "upstream")
        )
        return gateway_ms - upstream_ms

    figures = {
        "requests_per_s": results.most("requests", "gateway", requests_per_s),
        "upstream_requests_per_s": results.most("requests", "upstream", requests_per_s),
        "cpu_us_per_request": request_us["gateway"],
        "request_ratio_to_nginx": _ratio(request_us["gateway"], request_us["nginx"]),
        "cpu_us_per_chunk": chunk_us["gateway"],
        "nginx_cpu_us_per_chunk": chunk_us["nginx"],
        "chunk_ratio_to_nginx": _ratio(chunk_us["gateway"], chunk_us["nginx"]),
        "added_ttft_ms_p50": added_ms("p50"),
        "added_ttft_ms_p99": added_ms("p99"),
    }
    return {name: round(figure, 3) for name, figure in figures.items()}


def _ratio(ours: float, theirs: float) -> float:
    """Infinite if nothing was asked of the other one, as in a short window in which the generator stood still."""
    return ours / theirs if theirs else math.inf


def table_of(results: Results, figures: Mapping[str, float]) -> str:
    def row(what: str, measure: str, shown: Callable[[list[Measured]], str]) -> list[str]:
        names = ("gateway", "nginx", "upstream")
        return [what, *(shown(found) if (found := results.of.get((measure, name))) else "" for name in names)]

    rows = [
        ["", "gateway", "nginx", "upstream"],
        row("requests/s, not streamed", "requests", lambda all_: f"{max(map(requests_per_s, all_)):,.0f}"),
        row("CPU µs per request", "requests", lambda all_: f"{min(map(cpu_us_per_request, all_)):.1f}"),
        row(f"CPU µs per chunk, {STREAMS} streams", "chunks", lambda all_: f"{min(map(cpu_us_per_chunk, all_)):.2f}"),
        row("first token p50, ms", "first tokens", lambda all_: f"{min(done.first_ms['p50'] for done in all_):.2f}"),
        row("first token p99, ms", "first tokens", lambda all_: f"{min(done.first_ms['p99'] for done in all_):.2f}"),
    ]
    lines = [f"{row[0]:30}" + "".join(f"{cell:>12}" for cell in row[1:]) for row in rows]
    lines.append("")
    for name, most in MUST.items():
        verdict = "met" if figures[name] <= most else "MISSED"
        lines.append(f"{name:30}{figures[name]:>12.2f}   at most {most:g}: {verdict}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    stop_cleanly_on_sigterm()
    try:
        results = measure_all(args.seconds or (QUICK_SECONDS if args.quick else SECONDS), args.gateway_command)
    except (MissingPart, TooFewCores, WrongAnswers, ProcessFailedError) as problem:
        return _problem(str(problem))
    except KeyboardInterrupt:
        return _problem("interrupted; nothing is left running", status=130)
    figures = figures_of(results)
    print(table_of(results, figures))
    others = results.others_share()
    if not (quiet := others <= OTHERS_SHARE_MAX):
        tell(f"other processes took {others:.0%} of the target's core: trust the ratios, not the absolute figures")
    missed = missed_in_ci(figures, quiet=quiet) if args.check else []
    for sentence in missed:
        tell(f"missed: {sentence}; docs/project/performance.md says where the time goes")
    print(json.dumps(figures), flush=True)
    return 1 if missed else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="bench-relay", description="The gateway against its upstream and nginx.")
    made.add_argument("--quick", action="store_true", help=f"windows of {QUICK_SECONDS:g} s instead of {SECONDS:g}")
    made.add_argument("--seconds", type=_seconds, metavar="S", help="the length of each window")
    add_common_arguments(made, bar="a bar is missed, by CI's measure")
    return made


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.2 <= seconds <= 120:
        raise argparse.ArgumentTypeError("give from 0.2 to 120 seconds")
    return seconds


def measure_all(seconds: float, gateway_command: Sequence[str]) -> Results:
    find_nginx()
    cores = two_cores()
    results = Results()
    steps = [(measure, target) for measure in MEASURES for _ in range(ROUNDS) for target in measure.targets]
    with all_targets(cores, gateway_command) as targets:
        for number, (measure, name) in enumerate(steps, start=1):
            done = measured(measure, targets[name], seconds, cores)
            results.add(measure.name, name, done)
            others = f" (others {done.others_share:.0%})" if done.others_share > OTHERS_SHARE_MAX else ""
            tell(f"[{number:2}/{len(steps)}] {measure.name:12} {name:9} {measure.shown(done)}{others}")
    return results


@contextmanager
def all_targets(cores: Cores, gateway_command: Sequence[str]) -> Generator[Mapping[str, Target]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        tell(f"starting upstream (core {cores.instruments}), nginx and gateway (core {cores.target})")
        behind = stack.enter_context(upstream(cores.instruments))
        url = f"http://127.0.0.1:{behind.port}"
        before = [
            stack.enter_context(nginx(cores.target, behind.port, folder / "nginx")),
            stack.enter_context(gateway(cores.target, url, folder / "gateway", command=gateway_command)),
        ]
        yield {target.name: target for target in (behind, *before)}


def measured(measure: Measure, target: Target, seconds: float, cores: Cores) -> Measured:
    plan = Plan(
        port=target.port,
        key=target.key,
        model=target.model,
        pids=target.pids,
        core=None if target.name == "upstream" else cores.target,
        seconds=seconds,
        **measure.plan,  # pyright: ignore[reportArgumentType]
    )
    done = loaded(target, plan, cores, load=measure.name)
    sent = plan.connections * seconds * 1000 / plan.pace_ms if measure.name == "chunks" else 0
    if done.chunks < KEEPS_UP_SHARE_MIN * sent:
        tell(f"{target.name} delivered {done.chunks} of {sent:.0f} chunks: a core was full, so the figures are too low")
    return done


def _problem(text: str, *, status: int = 2) -> int:
    tell(f"bench-relay: {text}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
