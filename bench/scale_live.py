"""Check that a live gateway scales up in time under a burst, and scales down without severing streams.

    just scale-live [--cold-start S] [--burst X] [--seed N] [--assert]

`headgate serve` runs with one pool whose fleet starts simulated engines as processes. Each engine loads for 20 seconds
before it is ready, as it would with real weights. `headgate loadtest` sends long prompts at random times: first a load
that one engine can carry, then three times as much, then the first load again until the additional engines have been
stopped.

- `scaled_up_s`: time from the start of the burst until enough engines for it were ready.
- `recovered_s`: time from the start of the burst to the point from which, until the end of the burst, 99 of 100
  requests got their first token within the class's objective. A rejection counts as a miss.
- `severed`: responses in the entire run that started but did not complete.

Progress goes to stderr, a table to stdout. The last line is the results as JSON.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

from bench.cli import print_progress, stop_cleanly_on_sigterm
from bench.policy.fleet import speed_of
from headgate.core.cost import cost_ns
from headgate.loadtest.request import LoadTestOutcome
from headgate.model.engine_profile import PROFILES
from headgate.model.units import SECOND
from testing.gateway import Config, a_config, gateway_process
from testing.processes import ChildProcess, ProcessFailedError

PROFILE = PROFILES["h100x8-llama-70b"]
SPEED = speed_of(PROFILE)
MODEL = "llama"
PROMPT_TOKENS, OUTPUT_TOKENS = 2_000, 20
"""Long prompts and short responses: much work for an engine, but few tokens to relay."""
BASE_LOAD = 0.5
"""Load before and after the burst, as a multiple of one engine's capacity."""
BASE_S, BURST_S = 15.0, 60.0
PERIOD_S = 2.0
ENDPOINTS_MAX = 5
TTFT_S = 2.0
QUEUE_WAIT_S = 5.0
RECOVER_S_MAX = 10.0
"""Time allowed for recovery in addition to the cold start."""
CALM_S_MAX = 100.0
"""Maximum time in seconds after the burst until the additional engines have been stopped."""
LOOK_EVERY_S = 0.25
DRAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    cold_start_s: float
    burst: float
    """Load in the burst as a multiple of the base load."""
    seed: int
    base_s: float = BASE_S
    burst_s: float = BURST_S
    calm_s_max: float = CALM_S_MAX

    @property
    def request_s(self) -> float:
        """Engine time of one request, in seconds."""
        return cost_ns(SPEED, PROMPT_TOKENS, OUTPUT_TOKENS) / SECOND

    @property
    def engines_needed(self) -> int:
        """Minimum number of engines that can carry the burst."""
        return -int(-BASE_LOAD * self.burst // 1)

    @property
    def burst_ends_s(self) -> float:
        return self.base_s + self.burst_s

    @property
    def ends_s(self) -> float:
        return self.burst_ends_s + self.calm_s_max

    def moments(self) -> Iterator[float]:
        """Yield the due times of requests, in seconds from the start of the run."""
        chance = random.Random(f"{self.seed} arrivals of scale-live")
        at_s = 0.0
        while True:
            load = BASE_LOAD * (self.burst if self.base_s <= at_s < self.burst_ends_s else 1)
            at_s += chance.expovariate(load / self.request_s)
            if at_s >= self.ends_s:
                return
            yield at_s

    def config(self, folder: Path) -> Config:
        config = a_config(
            served_model=MODEL,
            model=MODEL,
            in_flight_max=64,
            classes={
                "interactive": {
                    "priority_band": 0,
                    "ttft": f"{TTFT_S}s",
                    "queue_wait_max": f"{QUEUE_WAIT_S}s",
                    "attempt_timeout": "60s",
                }
            },
        )
        command = [sys.executable, "-m", "headgate.cli.main", "engine", "--profile", PROFILE.name, "--port", "{port}"]
        config["pools"]["small"] |= {
            "speed": PROFILE.name,
            "warm_up": f"{self.cold_start_s}s",
            "fleet": {
                "kind": "processes",
                "command": [*command, "--model", "{model}", "--cold-start", str(self.cold_start_s)],
                "log_directory": str(folder / "engines"),
            },
            "scaling": {
                "endpoints_max": ENDPOINTS_MAX,
                "period": f"{PERIOD_S}s",
                "cold_start": f"{self.cold_start_s}s",
                "scale_down_stabilization": "10s",
                "scale_down_percent": 50,
            },
        }
        return config


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """State of the fleet at one point in the run."""

    at_s: float
    ready: int
    known: int
    """Number of endpoints including those that are starting or leaving."""


@dataclass
class Watcher:
    """Polls the gateway's status."""

    config: Config
    began_s: float
    """Start of the run on the monotonic clock."""
    seen: list[FleetStatus] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def watching(self) -> Iterator["Watcher"]:
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.over.set()
            thread.join()

    def _watch(self) -> None:
        last = (0, 0)
        while not self.over.wait(LOOK_EVERY_S):
            seen = look(self.config, self.began_s)
            if seen is None:
                continue
            self.seen.append(seen)
            if (seen.ready, seen.known) != last:
                last = (seen.ready, seen.known)
                print_progress(f"{seen.at_s:6.1f} s: {seen.ready} of {seen.known} endpoints ready")


def look(config: Config, began_s: float) -> FleetStatus | None:
    """Return the fleet's state, or None if the gateway is too busy to respond."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{config['admin_listen']}/status", timeout=5) as page:
            endpoints = json.load(page)["endpoints"]
    except (OSError, HTTPException, ValueError):
        return None
    ready = sum(each["state"] == "ready" and not each["leaving"] for each in endpoints)
    return FleetStatus(time.monotonic() - began_s, ready, len(endpoints))


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """Result of one request."""

    due_s: float
    ttft_s: float | None
    ending: LoadTestOutcome

    @property
    def in_time(self) -> bool:
        return self.ttft_s is not None and self.ttft_s <= TTFT_S


@dataclass(frozen=True, slots=True)
class Figures:
    scaled_up_s: float | None
    recovered_s: float | None
    severed: int
    endpoints_most: int
    endpoints_last: int
    requests: int
    refused_before_recovery: int
    refused_after: int
    ttft_s_p99_base: float
    ttft_s_p99_recovered: float | None


def figures_of(plan: Plan, answered: Sequence[RequestTiming], seen: Sequence[FleetStatus]) -> Figures:
    enough = (each.at_s for each in seen if each.ready >= plan.engines_needed and each.at_s >= plan.base_s)
    scaled_up_s = next(enough, None)
    recovered_s = recovery_s([each for each in answered if plan.base_s <= each.due_s < plan.burst_ends_s], plan.base_s)
    recovered_at = plan.burst_ends_s if recovered_s is None else plan.base_s + recovered_s
    refused = [each.due_s for each in answered if each.ending is LoadTestOutcome.HTTP_ERROR]
    after = [each for each in answered if recovered_at <= each.due_s < plan.burst_ends_s]
    return Figures(
        scaled_up_s=None if scaled_up_s is None else round(scaled_up_s - plan.base_s, 2),
        recovered_s=None if recovered_s is None else round(recovered_s, 2),
        severed=sum(each.ending in (LoadTestOutcome.INTERRUPTED, LoadTestOutcome.UNFINISHED) for each in answered),
        endpoints_most=max(each.ready for each in seen),
        endpoints_last=seen[-1].known,
        requests=len(answered),
        refused_before_recovery=sum(due_s < recovered_at for due_s in refused),
        refused_after=sum(due_s >= recovered_at for due_s in refused),
        ttft_s_p99_base=_p99([each for each in answered if each.due_s < plan.base_s]),
        ttft_s_p99_recovered=_p99(after) if after else None,
    )


def recovery_s(burst: Sequence[RequestTiming], base_s: float = BASE_S) -> float | None:
    """Return the time from which, until the end of the burst, 99 of 100 requests were on time, or None."""
    missed = 0
    found: float | None = None
    for total, each in enumerate(sorted(burst, key=lambda each: each.due_s, reverse=True), start=1):
        missed += not each.in_time
        if missed * 100 <= total:
            found = each.due_s - base_s
    return found


def _p99(answered: Sequence[RequestTiming]) -> float:
    values = sorted(each.ttft_s if each.ttft_s is not None else float("inf") for each in answered)
    return round(values[min(len(values) - 1, len(values) * 99 // 100)], 3)


# Run


def run(plan: Plan, folder: Path) -> Figures:
    moments = list(plan.moments())
    rows = [f"{at_s:.6f},{PROMPT_TOKENS},{OUTPUT_TOKENS}" for at_s in moments]
    (folder / "trace.csv").write_text("\n".join(["at_s,prompt_tokens,output_tokens", *rows, ""]))
    config = plan.config(folder)
    with gateway_process(config, folder) as gateway:
        _wait_until_ready(gateway, config, plan)
        print_progress(f"one engine is ready; sending {len(moments)} requests with a burst from {plan.base_s:g} s")
        answered, seen = _send(plan, config, folder)
        _wait_until_calm(config, seen)
    return figures_of(plan, answered, seen)


def _wait_until_ready(gateway: ChildProcess, config: Config, plan: Plan) -> None:
    give_up_at = time.monotonic() + plan.cold_start_s + 120
    while (seen := look(config, 0.0)) is None or not seen.ready:
        if time.monotonic() > give_up_at:
            raise ProcessFailedError(f"no engine became ready; end of the gateway's log:\n{gateway.log()[-2000:]}")
        time.sleep(LOOK_EVERY_S)


def _send(plan: Plan, config: Config, folder: Path) -> tuple[list[RequestTiming], list[FleetStatus]]:
    record = folder / "record.jsonl"
    command = [
        sys.executable,
        "-m",
        "headgate.cli.main",
        "loadtest",
        "--url",
        f"http://{config['listen']}",
        "--model",
        MODEL,
    ]
    how = ["--trace", folder / "trace.csv", "--ignore-eos", "--retries", "0", "--drain-timeout", str(DRAIN_S), "--json"]
    loadtest = subprocess.Popen([*command, *how, "--record", record], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        # The process takes some time to start sending; its record contains the actual start.
        with Watcher(config, time.monotonic()).watching() as watcher:
            started_unix_s = time.time()
            _, said = loadtest.communicate(timeout=plan.ends_s + DRAIN_S + 120)
    finally:
        loadtest.kill()
        loadtest.wait()
    if not record.exists() or not record.read_text():
        raise ProcessFailedError(f"the load test recorded nothing; end of its output:\n{said.decode()[-2000:]}")
    if not watcher.seen:
        raise ProcessFailedError("the gateway never reported its status; use a machine with less other load")
    lines: list[dict[str, Any]] = [json.loads(line) for line in record.read_text().splitlines()]
    begun_after_s = lines[0]["scheduled_unix_s"] - lines[0]["scheduled_s"] - started_unix_s
    seen = [FleetStatus(each.at_s - begun_after_s, each.ready, each.known) for each in watcher.seen]
    return [_answered(line) for line in lines], seen


def _answered(line: dict[str, Any]) -> RequestTiming:
    first_s = line["first_token_s"]
    ttft_s = None if first_s is None else first_s - line["scheduled_s"]
    return RequestTiming(line["scheduled_s"], ttft_s, LoadTestOutcome(line["outcome"]))


def _wait_until_calm(config: Config, seen: list[FleetStatus]) -> None:
    """Wait for drains that end after the last request."""
    last = seen[-1].at_s
    began_s = time.monotonic() - last
    while seen[-1].known > seen[-1].ready and time.monotonic() - began_s < last + 15:
        time.sleep(LOOK_EVERY_S)
        if (found := look(config, began_s)) is not None:
            seen.append(found)


# Command


def table_of(figures: Figures, plan: Plan) -> str:
    def told(value: float | None) -> str:
        return "never" if value is None else f"{value:g} s"

    return "\n".join(
        [
            f"enough engines ready after       {told(figures.scaled_up_s)} (cold start {plan.cold_start_s:g} s)",
            f"TTFT objective met again after   {told(figures.recovered_s)} (target {TTFT_S:g} s at p99)",
            f"severed responses                {figures.severed} of {figures.requests}",
            f"endpoints                        1; maximum {figures.endpoints_most}; at end {figures.endpoints_last}",
            f"rejected before recovery, after  {figures.refused_before_recovery}, {figures.refused_after}",
            f"TTFT p99 before the burst        {told(figures.ttft_s_p99_base)}",
            f"TTFT p99 after recovery          {told(figures.ttft_s_p99_recovered)}",
        ]
    )


def missed_thresholds(figures: Figures, plan: Plan) -> list[str]:
    said: list[str] = []
    bar_s = plan.cold_start_s + RECOVER_S_MAX
    if figures.scaled_up_s is None:
        said.append(f"missed: {plan.engines_needed} engines were never ready at the same time")
    if figures.recovered_s is None or figures.recovered_s > bar_s:
        said.append(f"missed: p99 TTFT did not meet its objective again within {bar_s:g} s")
    if figures.severed:
        said.append(f"missed: {figures.severed} responses were severed; the limit is 0")
    if figures.endpoints_last >= figures.endpoints_most:
        said.append("missed: none of the engines added for the burst was removed")
    return said


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    stop_cleanly_on_sigterm()
    plan = Plan(args.cold_start, args.burst, args.seed)
    if args.smoke:
        plan = replace(plan, base_s=3.0, burst_s=8.0, calm_s_max=4.0)
    try:
        with tempfile.TemporaryDirectory(prefix="headgate-scale-live-") as name:
            figures = run(plan, Path(name))
    except (ProcessFailedError, subprocess.TimeoutExpired) as problem:
        print_progress(f"scale-live: {problem}")
        return 2
    print(table_of(figures, plan))
    sentences = missed_thresholds(figures, plan) if args.check else []
    for sentence in sentences:
        print_progress(sentence)
    told = {"scaled_up_s": figures.scaled_up_s, "recovered_s": figures.recovered_s, "severed": figures.severed}
    print(json.dumps(told), flush=True)
    return 1 if sentences else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="scale-live", description="Send a burst to a live gateway that scales its pool."
    )
    made.add_argument("--cold-start", type=float, default=20.0, metavar="S", help="load time of an engine (default 20)")
    made.add_argument("--burst", type=float, default=3.0, metavar="X", help="multiple of the base load (default 3)")
    made.add_argument("--seed", type=int, default=0, help="random seed of the arrivals (default 0)")
    made.add_argument("--smoke", action="store_true", help="run a burst of a few seconds, as a smoke test")
    made.add_argument("--assert", dest="check", action="store_true", help="exit 1 if a limit is missed")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
