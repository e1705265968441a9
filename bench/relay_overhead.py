"""Measure the cost of relaying through the gateway, compared with nginx, Envoy and a direct connection.

    just bench-relay [--quick] [--assert] [--seconds S] [--gateway-command COMMAND]

The same upstream is measured directly, behind nginx, behind Envoy and behind the gateway. The measured process runs on
one core, upstream and load generator on another. Each measurement is repeated three times, rotating through the targets
in each round, and the best of the three counts, because other load on the machine can only make a result worse.

Progress goes to stderr, a table to stdout. The last line is the results as JSON.
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

from bench.baseline_proxies import PROXIES, check_installed, running_proxy
from bench.cli import (
    FailedRequests,
    add_common_arguments,
    print_progress,
    report_problem,
    stop_cleanly_on_sigterm,
    window_seconds,
)
from bench.cpu_cores import Cores, TooFewCores, two_cores
from bench.load_generator import LoadPlan, LoadResult
from bench.relay_thresholds import THRESHOLDS, missed_ci_thresholds
from bench.run_load import run_load
from bench.targets import Target, gateway, upstream
from testing.processes import MissingProgram, ProcessFailedError

ROUNDS = 3
SECONDS = 8.0
QUICK_SECONDS = 2.5
REQUESTS_AT_ONCE = 16
STREAMS = 200
STREAM_CHUNKS = 200
STREAM_PACE_MS = 45
KEEPS_UP_SHARE_MIN = 0.97
"""Share of the upstream's chunks that must arrive in the window. If fewer chunks arrive, the target was saturated."""
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
    "envoy_cpu_us_per_request",
    "request_over_envoy",
    "envoy_cpu_us_per_chunk",
    "chunk_over_envoy",
    "added_ttft_ms_p50",
    "added_ttft_ms_p99",
)


@dataclass(frozen=True, slots=True)
class Measure:
    """One kind of load, and the format of its progress output."""

    name: str
    targets: tuple[str, ...]
    plan: Mapping[str, float]
    shown: Callable[[LoadResult], str]


MEASURES = (
    Measure(
        "requests",
        ("upstream", "nginx", "envoy", "gateway"),
        {"connections": REQUESTS_AT_ONCE, "warm_up_s": 0.5},
        lambda done: f"{done.requests / done.seconds:,.0f}/s, {cpu_us_per_request(done):.0f} µs of CPU per request",
    ),
    Measure(
        "chunks",
        ("nginx", "envoy", "gateway"),
        {"connections": STREAMS, "chunks": STREAM_CHUNKS, "pace_ms": STREAM_PACE_MS, "warm_up_s": 1.5},
        lambda done: f"{done.chunks / done.seconds:,.0f}/s, {cpu_us_per_chunk(done):.1f} µs of CPU per chunk",
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
    """Results by measurement and target, one entry per round."""

    of: dict[tuple[str, str], list[LoadResult]] = field(default_factory=dict)

    def add(self, measure: str, target: str, done: LoadResult) -> None:
        self.of.setdefault((measure, target), []).append(done)

    def least(self, measure: str, target: str, figure: Callable[[LoadResult], float]) -> float:
        rounds = self.of[measure, target]
        # A saturated target handles chunks in batches, which makes each of them cheaper.
        kept_up = [done for done in rounds if measure != "chunks" or keeps_up(done)]
        return min(figure(done) for done in kept_up or rounds)

    def most(self, measure: str, target: str, figure: Callable[[LoadResult], float]) -> float:
        return max(figure(done) for done in self.of[measure, target])

    def others_share(self) -> float:
        """Return the share of the target's core that other processes used, over all rounds."""
        every = [done.others_share for (_, target), all_ in self.of.items() if target != "upstream" for done in all_]
        return sum(every) / len(every)


def keeps_up(done: LoadResult) -> bool:
    """Return whether nearly all chunks that the upstream sent arrived in the window."""
    return done.chunks >= KEEPS_UP_SHARE_MIN * STREAMS * done.seconds * 1000 / STREAM_PACE_MS


def cpu_us_per_request(done: LoadResult) -> float:
    return done.cpu_ns / 1e3 / max(1, done.requests)


def cpu_us_per_chunk(done: LoadResult) -> float:
    return done.cpu_ns / 1e3 / max(1, done.chunks)


def requests_per_s(done: LoadResult) -> float:
    return done.requests / done.seconds


def figures_of(results: Results) -> dict[str, float]:
    chunk_us, request_us = (
        {name: results.least(measure, name, figure) for name in ("nginx", "envoy", "gateway")}
        for measure, figure in (("chunks", cpu_us_per_chunk), ("requests", cpu_us_per_request))
    )

    def added_ms(quantile: str) -> float:
        # Use each side's best round. The difference of a pair would look best if only the upstream was disturbed.
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
        "envoy_cpu_us_per_request": request_us["envoy"],
        "request_over_envoy": _ratio(request_us["gateway"], request_us["envoy"]),
        "envoy_cpu_us_per_chunk": chunk_us["envoy"],
        "chunk_over_envoy": _ratio(chunk_us["gateway"], chunk_us["envoy"]),
        "added_ttft_ms_p50": added_ms("p50"),
        "added_ttft_ms_p99": added_ms("p99"),
    }
    return {name: round(figure, 3) for name, figure in figures.items()}


def _ratio(ours: float, theirs: float) -> float:
    """Return the ratio, or infinity if the divisor is zero, as happens if the generator stalls in a short window."""
    return ours / theirs if theirs else math.inf


def table_of(results: Results, figures: Mapping[str, float]) -> str:
    def row(what: str, measure: str, shown: Callable[[list[LoadResult]], str]) -> list[str]:
        names = ("gateway", "nginx", "envoy", "upstream")
        return [what, *(shown(found) if (found := results.of.get((measure, name))) else "" for name in names)]

    rows = [
        ["", "gateway", "nginx", "envoy", "upstream"],
        row("requests/s, non-streaming", "requests", lambda all_: f"{max(map(requests_per_s, all_)):,.0f}"),
        row("CPU µs per request", "requests", lambda all_: f"{min(map(cpu_us_per_request, all_)):.1f}"),
        row(f"CPU µs per chunk, {STREAMS} streams", "chunks", lambda all_: f"{min(map(cpu_us_per_chunk, all_)):.2f}"),
        row("first token p50, ms", "first tokens", lambda all_: f"{min(done.first_ms['p50'] for done in all_):.2f}"),
        row("first token p99, ms", "first tokens", lambda all_: f"{min(done.first_ms['p99'] for done in all_):.2f}"),
    ]
    lines = [f"{row[0]:30}" + "".join(f"{cell:>12}" for cell in row[1:]) for row in rows]
    lines.append("")
    lines += [f"{name:30}{figures[name]:>12.2f}" for name in ("request_over_envoy", "chunk_over_envoy")]
    for name, most in THRESHOLDS.items():
        verdict = "met" if figures[name] <= most else "MISSED"
        lines.append(f"{name:30}{figures[name]:>12.2f}   at most {most:g}: {verdict}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    stop_cleanly_on_sigterm()
    try:
        results = measure_all(args.seconds or (QUICK_SECONDS if args.quick else SECONDS), args.gateway_command)
    except (MissingProgram, TooFewCores, FailedRequests, ProcessFailedError) as problem:
        return report_problem("bench-relay", str(problem))
    except KeyboardInterrupt:
        return report_problem("bench-relay", "interrupted; all processes were stopped", status=130)
    figures = figures_of(results)
    print(table_of(results, figures))
    others = results.others_share()
    if not (quiet := others <= OTHERS_SHARE_MAX):
        print_progress(
            f"other processes used {others:.0%} of the target's core: rely on the ratios, not on absolute numbers"
        )
    missed = missed_ci_thresholds(figures, quiet=quiet) if args.check else []
    for sentence in missed:
        print_progress(f"missed: {sentence}. See docs/project/performance.md.")
    print(json.dumps(figures), flush=True)
    return 1 if missed else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="bench-relay", description="Compare the gateway with nginx, Envoy and the upstream."
    )
    made.add_argument("--quick", action="store_true", help=f"use windows of {QUICK_SECONDS:g} s instead of {SECONDS:g}")
    made.add_argument("--seconds", type=window_seconds, metavar="S", help="length of each window, in seconds")
    add_common_arguments(made, bar="a CI limit is missed")
    return made


def measure_all(seconds: float, gateway_command: Sequence[str]) -> Results:
    check_installed()
    cores = two_cores()
    results = Results()
    steps = [(measure, target) for measure in MEASURES for _ in range(ROUNDS) for target in measure.targets]
    with all_targets(cores, gateway_command) as targets:
        for number, (measure, name) in enumerate(steps, start=1):
            done = measure_target(measure, targets[name], seconds, cores)
            results.add(measure.name, name, done)
            others = f" (others {done.others_share:.0%})" if done.others_share > OTHERS_SHARE_MAX else ""
            print_progress(f"[{number:2}/{len(steps)}] {measure.name:12} {name:9} {measure.shown(done)}{others}")
    return results


@contextmanager
def all_targets(cores: Cores, gateway_command: Sequence[str]) -> Generator[Mapping[str, Target]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        print_progress(f"starting upstream (core {cores.instruments}), proxies and gateway (core {cores.target})")
        behind = stack.enter_context(upstream(cores.instruments))
        url = f"http://127.0.0.1:{behind.port}"
        before = [
            *(running_proxy(proxy, cores.target, behind.port, folder / proxy.name) for proxy in PROXIES),
            gateway(cores.target, url, folder / "gateway", command=gateway_command),
        ]
        yield {target.name: target for target in (behind, *map(stack.enter_context, before))}


def measure_target(measure: Measure, target: Target, seconds: float, cores: Cores) -> LoadResult:
    plan = LoadPlan(
        port=target.port,
        key=target.key,
        model=target.model,
        pids=target.pids,
        core=None if target.name == "upstream" else cores.target,
        seconds=seconds,
        **measure.plan,  # pyright: ignore[reportArgumentType]
    )
    done = run_load(target, plan, cores, load=measure.name)
    if measure.name == "chunks" and not keeps_up(done):
        print_progress(
            f"{target.name} delivered only {done.chunks} chunks in {done.seconds:g} s: a core was saturated, "
            "so this round counts only if no other round kept up"
        )
    return done


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
