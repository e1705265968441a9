"""Does a live gateway grow in time under a burst, and shrink again without severing anything?

    just scale-live [--cold-start S] [--burst X] [--seed N] [--assert]

`headgate serve` with one pool whose fleet starts simulated engines as processes, each of which loads for 20 seconds
before it serves, as one with real weights would. `headgate loadtest` sends long prompts at random moments: a while at
what one engine can carry, then three times as much, then as before until what was started has been given back.

- `scaled_up_s`: from the beginning of the burst until as many engines were ready as can carry it.
- `recovered_s`: from there until 99 of 100 requests, of all that were due from that moment to the end of the burst, had
  their first token within the class's target. A refusal counts as a miss.
- `severed`: answers of the whole run that began and did not end whole.

Progress goes to stderr; to stdout a table for people and, as the last line, the figures as JSON.
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

from bench.command import stop_cleanly_on_sigterm, tell
from bench.policy.fleet import speed_of
from headgate.core.cost import cost_ns
from headgate.loadtest.endings import Ending
from headgate.model.engine_profile import PROFILES
from headgate.model.units import SECOND
from testing.gateway import Config, a_config, gateway_process
from testing.processes import ChildProcess, ProcessFailedError

PROFILE = PROFILES["h100x8-llama-70b"]
SPEED = speed_of(PROFILE)
MODEL = "llama"
PROMPT_TOKENS, OUTPUT_TOKENS = 2_000, 20
"""Long prompts and short answers: much work for an engine and little for whoever only passes tokens on."""
BASE_LOAD = 0.5
"""Of one engine."""
BASE_S, BURST_S = 15.0, 60.0
PERIOD_S = 2.0
ENDPOINTS_MAX = 5
TTFT_S = 2.0
QUEUE_WAIT_S = 5.0
RECOVER_S_MAX = 10.0
"""Beside the cold start."""
CALM_S_MAX = 100.0
"""So long after the burst all that it called for has been given back."""
LOOK_EVERY_S = 0.25
DRAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    cold_start_s: float
    burst: float
    """So many times the base load."""
    seed: int
    base_s: float = BASE_S
    burst_s: float = BURST_S
    calm_s_max: float = CALM_S_MAX

    @property
    def request_s(self) -> float:
        """What a request takes of an engine."""
        return cost_ns(SPEED, PROMPT_TOKENS, OUTPUT_TOKENS) / SECOND

    @property
    def engines_needed(self) -> int:
        """As many as can carry the burst at all."""
        return -int(-BASE_LOAD * self.burst // 1)

    @property
    def burst_ends_s(self) -> float:
        return self.base_s + self.burst_s

    @property
    def ends_s(self) -> float:
        return self.burst_ends_s + self.calm_s_max

    def moments(self) -> Iterator[float]:
        """When requests are due, from the start of the run."""
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
                    "band": 0,
                    "ttft": f"{TTFT_S}s",
                    "queue_wait_max": f"{QUEUE_WAIT_S}s",
                    "total_max": "60s",
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
                "logs": str(folder / "engines"),
            },
            "scaling": {
                "endpoints_max": ENDPOINTS_MAX,
                "period": f"{PERIOD_S}s",
                "cold_start": f"{self.cold_start_s}s",
                "settle": "10s",
                "step_percent": 50,
            },
        }
        return config


@dataclass(frozen=True, slots=True)
class Seen:
    """The fleet at one moment of the run."""

    at_s: float
    ready: int
    known: int
    """Those that start or leave too."""


@dataclass
class Watcher:
    """Looks at the gateway's status all the time."""

    config: Config
    began_s: float
    """By the monotonic clock; moments of the run count from there."""
    seen: list[Seen] = field(default_factory=list)
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
                tell(f"{seen.at_s:6.1f} s: {seen.ready} endpoints ready of {seen.known}")


def look(config: Config, began_s: float) -> Seen | None:
    """None where the gateway is too busy to say."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{config['admin_listen']}/status", timeout=5) as page:
            endpoints = json.load(page)["endpoints"]
    except (OSError, HTTPException, ValueError):
        return None
    ready = sum(each["state"] == "ready" and not each["leaving"] for each in endpoints)
    return Seen(time.monotonic() - began_s, ready, len(endpoints))


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of one request."""

    due_s: float
    ttft_s: float | None
    ending: Ending

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


def figures_of(plan: Plan, answered: Sequence[Answered], seen: Sequence[Seen]) -> Figures:
    enough = (each.at_s for each in seen if each.ready >= plan.engines_needed and each.at_s >= plan.base_s)
    scaled_up_s = next(enough, None)
    recovered_s = recovery_s([each for each in answered if plan.base_s <= each.due_s < plan.burst_ends_s], plan.base_s)
    recovered_at = plan.burst_ends_s if recovered_s is None else plan.base_s + recovered_s
    refused = [each.due_s for each in answered if each.ending is Ending.REFUSED]
    after = [each for each in answered if recovered_at <= each.due_s < plan.burst_ends_s]
    return Figures(
        scaled_up_s=None if scaled_up_s is None else round(scaled_up_s - plan.base_s, 2),
        recovered_s=None if recovered_s is None else round(recovered_s, 2),
        severed=sum(each.ending in (Ending.BROKEN, Ending.UNFINISHED) for each in answered),
        endpoints_most=max(each.ready for each in seen),
        endpoints_last=seen[-1].known,
        requests=len(answered),
        refused_before_recovery=sum(due_s < recovered_at for due_s in refused),
        refused_after=sum(due_s >= recovered_at for due_s in refused),
        ttft_s_p99_base=_p99([each for each in answered if each.due_s < plan.base_s]),
        ttft_s_p99_recovered=_p99(after) if after else None,
    )


def recovery_s(burst: Sequence[Answered], base_s: float = BASE_S) -> float | None:
    """Of its moments the first from which to its end 99 of 100 were in time; None where that holds for none."""
    missed = 0
    found: float | None = None
    for total, each in enumerate(sorted(burst, key=lambda each: each.due_s, reverse=True), start=1):
        missed += not each.in_time
        if missed * 100 <= total:
            found = each.due_s - base_s
    return found


def _p99(answered: Sequence[Answered]) -> float:
    values = sorted(each.ttft_s if each.ttft_s is not None else float("inf") for each in answered)
    return round(values[min(len(values) - 1, len(values) * 99 // 100)], 3)


# The run


def run(plan: Plan, folder: Path) -> Figures:
    moments = list(plan.moments())
    rows = [f"{at_s:.6f},{PROMPT_TOKENS},{OUTPUT_TOKENS}" for at_s in moments]
    (folder / "trace.csv").write_text("\n".join(["at_s,prompt_tokens,output_tokens", *rows, ""]))
    config = plan.config(folder)
    with gateway_process(config, folder) as gateway:
        _wait_until_ready(gateway, config, plan)
        tell(f"one engine is ready; {len(moments)} requests follow, with a burst from {plan.base_s:g} s on")
        answered, seen = _send(plan, config, folder)
        _wait_until_calm(config, seen)
    return figures_of(plan, answered, seen)


def _wait_until_ready(gateway: ChildProcess, config: Config, plan: Plan) -> None:
    give_up_at = time.monotonic() + plan.cold_start_s + 120
    while (seen := look(config, 0.0)) is None or not seen.ready:
        if time.monotonic() > give_up_at:
            raise ProcessFailedError(f"no engine became ready; the gateway's log ends in:\n{gateway.log()[-2000:]}")
        time.sleep(LOOK_EVERY_S)


def _send(plan: Plan, config: Config, folder: Path) -> tuple[list[Answered], list[Seen]]:
    record = folder / "record.jsonl"
    command = [sys.executable, "-m", "headgate.cli.main", "loadtest", f"http://{config['listen']}", "--model", MODEL]
    how = ["--trace", folder / "trace.csv", "--exact-output", "--retries", "0", "--drain", str(DRAIN_S), "--json"]
    loadtest = subprocess.Popen([*command, *how, "--record", record], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        # The process needs a moment before it begins; its own record says when it did.
        with Watcher(config, time.monotonic()).watching() as watcher:
            started_unix_s = time.time()
            _, said = loadtest.communicate(timeout=plan.ends_s + DRAIN_S + 120)
    finally:
        loadtest.kill()
        loadtest.wait()
    if not record.exists() or not record.read_text():
        raise ProcessFailedError(f"the load test recorded nothing; it ends in:\n{said.decode()[-2000:]}")
    if not watcher.seen:
        raise ProcessFailedError("the gateway never told its status; give it a machine with less other work")
    lines: list[dict[str, Any]] = [json.loads(line) for line in record.read_text().splitlines()]
    begun_after_s = lines[0]["scheduled_unix_s"] - lines[0]["scheduled_s"] - started_unix_s
    seen = [Seen(each.at_s - begun_after_s, each.ready, each.known) for each in watcher.seen]
    return [_answered(line) for line in lines], seen


def _answered(line: dict[str, Any]) -> Answered:
    first_s = line["first_token_s"]
    ttft_s = None if first_s is None else first_s - line["scheduled_s"]
    return Answered(line["scheduled_s"], ttft_s, Ending(line["ending"]))


def _wait_until_calm(config: Config, seen: list[Seen]) -> None:
    """Drains that have begun may end after the last request has."""
    last = seen[-1].at_s
    began_s = time.monotonic() - last
    while seen[-1].known > seen[-1].ready and time.monotonic() - began_s < last + 15:
        time.sleep(LOOK_EVERY_S)
        if (found := look(config, began_s)) is not None:
            seen.append(found)


# The command


def table_of(figures: Figures, plan: Plan) -> str:
    def told(value: float | None) -> str:
        return "never" if value is None else f"{value:g} s"

    return "\n".join(
        [
            f"enough engines ready after        {told(figures.scaled_up_s)} (cold start {plan.cold_start_s:g} s)",
            f"first tokens in time again after  {told(figures.recovered_s)} (target {TTFT_S:g} s at p99)",
            f"severed answers                   {figures.severed} of {figures.requests}",
            f"endpoints                         1, at most {figures.endpoints_most}, at last {figures.endpoints_last}",
            f"refused before that, and after    {figures.refused_before_recovery}, {figures.refused_after}",
            f"p99 of first tokens at first      {told(figures.ttft_s_p99_base)}",
            f"p99 of first tokens from then on  {told(figures.ttft_s_p99_recovered)}",
        ]
    )


def missed(figures: Figures, plan: Plan) -> list[str]:
    said: list[str] = []
    bar_s = plan.cold_start_s + RECOVER_S_MAX
    if figures.scaled_up_s is None:
        said.append(f"missed: {plan.engines_needed} engines were never ready during the run")
    if figures.recovered_s is None or figures.recovered_s > bar_s:
        said.append(f"missed: p99 of first tokens is to be in time again within {bar_s:g} s")
    if figures.severed:
        said.append(f"missed: {figures.severed} answers were severed, and none may be")
    if figures.endpoints_last >= figures.endpoints_most:
        said.append("missed: nothing of what the burst called for was given back")
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
        tell(f"scale-live: {problem}")
        return 2
    print(table_of(figures, plan))
    sentences = missed(figures, plan) if args.check else []
    for sentence in sentences:
        tell(sentence)
    told = {"scaled_up_s": figures.scaled_up_s, "recovered_s": figures.recovered_s, "severed": figures.severed}
    print(json.dumps(told), flush=True)
    return 1 if sentences else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="scale-live", description="A burst on a live gateway that starts its engines.")
    made.add_argument("--cold-start", type=float, default=20.0, metavar="S", help="how long an engine loads (20)")
    made.add_argument("--burst", type=float, default=3.0, metavar="X", help="so many times the load before (3)")
    made.add_argument("--seed", type=int, default=0, help="when requests are due (0)")
    made.add_argument("--smoke", action="store_true", help="a burst of a few seconds, only to see that all of it works")
    made.add_argument("--assert", dest="check", action="store_true", help="exit 1 when a bar is missed")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
