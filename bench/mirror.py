"""Measure the effect of a mirror on the latency of the requests that it copies.

    just mirror [--pairs N] [--seconds N] [--percent N] [--assert]

Two gateways in front of the same two simulated engines share a core and are loaded in turn, in pairs of runs with the
same arrivals. The engines and the load generator run on another core. One gateway copies 10 % of the requests to the
second engine; the other copies none. The main result is the ratio of the p99 of the total time with and without the
mirror, over the requests of all pairs.

Progress goes to stderr, a table to stdout. The last line is the results as JSON.
"""

import argparse
import json
import os
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from bench.cli import FailedRequests, format_figures, print_progress, report_problem, stop_cleanly_on_sigterm
from bench.cpu_cores import Cores, TooFewCores, started_on, two_cores
from bench.targets import IN_FLIGHT_MAX, SPEED, Target, gateway
from testing.processes import MissingProgram, ProcessFailedError
from testing.simulated_engines import loadtest_result, simulated_engines, start_loadtest

PAIRS: Final = 10
SECONDS: Final = 4.0
PERCENT: Final = 10
RATIO_MAX: Final = 1.03
RATE: Final = 20
"""Requests per second, few enough that the engines and the load generator seldom compete for their core."""
TOKENS: Final = "40:120"
PROFILE: Final = "h200-llama-8b"
"""Profile of the simulated engines. A faster one would mostly measure how the simulations compete for their core."""
_FINISH_S_MAX: Final = 120.0
_KEY: Final = "HEADGATE_BENCH_KEY"
_METRIC: Final = "headgate_mirrored_requests_total{"


@dataclass(slots=True)
class Latencies:
    """Latencies of the requests of one side, in seconds."""

    total: list[float] = field(default_factory=list[float])
    first_token: list[float] = field(default_factory=list[float])


def p99(values: Sequence[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98]


def measure(*, pairs: int, seconds: float, percent: int) -> dict[str, float]:
    cores = two_cores()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        with started_on(cores.instruments):
            urls = [stack.enter_context(simulated_engines(1, "--profile", PROFILE))[0] for _ in range(2)]
        on, off = (
            stack.enter_context(gateway(cores.target, urls[0], folder / name, settings=_settings(urls, share)))
            for name, share in (("mirrored", percent), ("plain", None))
        )
        with_mirror, without = Latencies(), Latencies()
        ratios: list[float] = []
        for number in range(pairs):
            order = ((on, with_mirror), (off, without))
            found: dict[int, Latencies] = {}
            for target, side in order if number % 2 else order[::-1]:
                run = found[target.port] = _run(target, number, seconds, cores, folder)
                side.total += run.total
                side.first_token += run.first_token
            ratios.append(p99(found[on.port].total) / p99(found[off.port].total))
            print_progress(f"pair {number + 1}/{pairs}: p99 with the mirror is {ratios[-1]:.3f} times p99 without it")
        counts = _mirrored(on)
    return {
        "p99_ratio": round(p99(with_mirror.total) / p99(without.total), 4),
        "p99_ratio_median_of_pairs": round(median(ratios), 4),
        "ttft_p99_ratio": round(p99(with_mirror.first_token) / p99(without.first_token), 4),
        "p99_ms_with": round(1e3 * p99(with_mirror.total), 1),
        "p99_ms_without": round(1e3 * p99(without.total), 1),
        "requests": len(with_mirror.total),
        "mirrored": counts.pop("completed", 0),
        "not_mirrored": sum(counts.values()),
    }


def _settings(urls: Sequence[str], percent: int | None) -> dict[str, Any]:
    pool = {"engine": "vllm", "served_model": "sim", "in_flight_max": IN_FLIGHT_MAX, "speed": SPEED}
    mirror = {} if percent is None else {"mirror": {"pools": ["candidate"], "percent": percent}}
    return {
        "pools": {name: pool | {"endpoints": [url]} for name, url in zip(("bench", "candidate"), urls, strict=True)},
        "models": {"public-model": {"pools": ["bench"], "routes": [{"pools": ["bench"], **mirror}]}},
    }


def _run(target: Target, seed: int, seconds: float, cores: Cores, folder: Path) -> Latencies:
    """Load the gateway and return the latencies. Both sides of a pair have the same seed, so the same arrivals."""
    record = folder / "requests.jsonl"
    with started_on(cores.instruments):
        loadtest = start_loadtest(
            f"http://127.0.0.1:{target.port}",
            *("--model", target.model, "--rate", str(RATE), "--duration", str(seconds), "--seed", str(seed)),
            *("--output-tokens", TOKENS, "--ignore-eos", "--retries", "0", "--record", str(record)),
            *("--api-key", f"env:{_KEY}"),
            environment=os.environ | {_KEY: target.key},
        )
    total = loadtest_result(loadtest, seconds + _FINISH_S_MAX)["total"]
    if not total["offered"] or total["completed"] != total["offered"]:
        raise FailedRequests(f"only {total['completed']} of {total['offered']} requests completed")
    found = Latencies()
    for line in record.read_text().splitlines():
        request = json.loads(line)
        found.total.append(request["end_s"] - request["scheduled_s"])
        found.first_token.append(request["first_token_s"] - request["scheduled_s"])
    return found


def _mirrored(target: Target) -> dict[str, int]:
    """Read the number of requests selected for copying, by result."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(target.status_url.removesuffix("/status") + "/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    return {
        line.partition('result="')[2].partition('"')[0]: int(float(line.rpartition(" ")[2]))
        for line in lines
        if line.startswith(_METRIC)
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="mirror", description="Measure the effect of a mirror on its requests.")
    parser.add_argument("--pairs", type=int, default=PAIRS, metavar="N", help=f"pairs of runs (default {PAIRS})")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="N", help=f"length of a run (default {SECONDS:g})"
    )
    parser.add_argument(
        "--percent", type=int, default=PERCENT, metavar="N", help=f"share of copied requests (default {PERCENT})"
    )
    parser.add_argument(
        "--assert", dest="check", action="store_true", help=f"exit 1 if p99_ratio is above {RATIO_MAX:g}"
    )
    args = parser.parse_args(arguments)
    stop_cleanly_on_sigterm()
    try:
        figures = measure(pairs=args.pairs, seconds=args.seconds, percent=args.percent)
    except (MissingProgram, TooFewCores, FailedRequests, ProcessFailedError) as problem:
        return report_problem("mirror", str(problem), status=1)
    print(format_figures(figures))
    print(json.dumps(figures), flush=True)
    return int(args.check and figures["p99_ratio"] > RATIO_MAX)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
