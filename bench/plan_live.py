"""Check a capacity plan against live gateways: the planned fleet holds the objective, and one endpoint fewer does not.

    just plan-live [--seconds S] [--seeds N ...] [--assert]

`headgate plan` finds the number of engines for a workload. `headgate loadtest` then sends the same workload to a live
gateway with that many live simulated engines, and to one with one engine fewer, once per seed. The plan is made for the
same seeds and the complete workload, without headroom.

Progress goes to stderr, a table to stdout. The last line is the results as JSON: `planned_holds` and `one_fewer_holds`
are numbers of seeds.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from bench.cli import FailedRequests, print_progress, report_problem, stop_cleanly_on_sigterm
from headgate.model.engine_profile import RTXPRO6000_LLAMA_8B
from testing.gateway import a_config, gateway_process, urls_of
from testing.processes import ProcessFailedError
from testing.simulated_engines import HEADGATE, loadtest_result, simulated_engines, start_loadtest

PROFILE: Final = RTXPRO6000_LLAMA_8B.name
CLASS: Final = "interactive"
OBJECTIVE: Final = 0.95
IN_FLIGHT_MAX: Final = 16
SECONDS: Final = 60.0
SEEDS: Final = (0, 1, 2)
RATE: Final = 12.0
"""Requests per second. The long prompts keep the number of requests low, because the machine also runs the engines."""
TARGETS: Final = {"ttft": "2s", "tpot": "150ms"}
_DRAIN_S_MAX: Final = 120.0


@dataclass(frozen=True, slots=True)
class LiveRun:
    seed: int
    engines: int
    attainment: float
    behind: bool
    """Whether the load generator reported that it was behind schedule."""

    @property
    def holds(self) -> bool:
        return self.attainment >= OBJECTIVE


def workload(seconds: float) -> dict[str, Any]:
    """Return the part of a scenario that is also a workload file of the load test."""
    source = {"rate": RATE, "classes": CLASS, "prompt": "3000:6000", "output": "20:80"}
    return {"duration": f"{seconds:g}s", "callers": {CLASS: dict(TARGETS)}, "traffic": [source]}


@dataclass(frozen=True, slots=True)
class Planned:
    engines: int
    attainment: float
    """Lowest simulated attainment over all seeds."""
    attainment_one_fewer: float | None


def planned_engines(folder: Path, *, seconds: float, seeds: Sequence[int]) -> Planned:
    """Return the number of engines in the plan for all seeds, and what the simulation expects of it."""
    pool = {"engines": [{"profile": PROFILE}], "in_flight_max": IN_FLIGHT_MAX, "prices": {"per_hour": 2.5}}
    scenario = {
        "title": "A workload that fits on one machine",
        "pools": {"main": pool},
        "classes": {CLASS: {}},
        "objectives": {CLASS: f"{OBJECTIVE:.0%}"},
        **workload(seconds),
    }
    file = folder / "plan.yaml"
    file.write_text(yaml.safe_dump(scenario))
    arguments = ("--headroom", "0%", "--traffic", "1", "--window", f"{seconds:g}s", "--seeds", str(max(seeds) + 1))
    arguments = (*arguments, "--no-alternatives")
    done = subprocess.run(
        [*HEADGATE, "plan", str(file), *arguments, "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise FailedRequests(f"headgate plan failed: {done.stderr.strip()}")
    plan = json.loads(done.stdout)
    fewer = [each["attainment"][CLASS] for each in plan["what_if"] if each["outage"] is None]
    return Planned(plan["endpoints"]["main"], plan["attainment"][CLASS], min(fewer, default=None))


def live_run(folder: Path, *, engines: int, seconds: float, seed: int) -> LiveRun:
    file = folder / "workload.yaml"
    file.write_text(yaml.safe_dump(workload(seconds)))
    with ExitStack() as stack:
        urls = stack.enter_context(simulated_engines(engines, "--profile", PROFILE))
        config = a_config(
            *urls,
            served_model="sim",
            in_flight_max=IN_FLIGHT_MAX,
            classes={CLASS: {"priority_band": 0, "queue_wait_max": "30s", **TARGETS}},
        )
        config["pools"]["small"]["speed"] = {"profile": PROFILE}
        stack.enter_context(gateway_process(config, folder))
        url, _ = urls_of(config)
        arguments = ("--model", "m", "--workload", str(file), "--ignore-eos", "--seed", str(seed))
        loadtest = start_loadtest(url, *arguments)
        found = loadtest_result(loadtest, seconds + _DRAIN_S_MAX)
    total = found["classes"][CLASS]
    run = LiveRun(seed, engines, total["good"] / total["offered"], found["generator"]["behind"])
    verdict = "holds" if run.holds else "does not hold"
    print_progress(
        f"seed {seed}, {engines} engines: {run.attainment:.1%} of {total['offered']} requests good, {verdict}"
    )
    return run


def figures_of(planned: Planned, runs: Sequence[LiveRun]) -> dict[str, Any]:
    at_plan = [each for each in runs if each.engines == planned.engines]
    fewer = [each for each in runs if each.engines < planned.engines]
    return {
        "seeds": len(at_plan),
        "planned": planned.engines,
        "planned_holds": sum(each.holds for each in at_plan),
        "one_fewer_holds": sum(each.holds for each in fewer),
        "planned_attainment_min": round(min(each.attainment for each in at_plan), 4),
        "one_fewer_attainment_max": round(max(each.attainment for each in fewer), 4),
        "simulated_planned_attainment_min": planned.attainment,
        "simulated_one_fewer_attainment_min": planned.attainment_one_fewer,
        "behind": sum(each.behind for each in runs),
    }


def main(words: Sequence[str] | None = None) -> int:
    stop_cleanly_on_sigterm()
    arguments = _arguments(words)
    try:
        with tempfile.TemporaryDirectory(prefix="headgate-plan-live-") as name:
            folder = Path(name)
            planned = planned_engines(folder, seconds=arguments.seconds, seeds=arguments.seeds)
            print_progress(f"the plan has {planned.engines} engines for {RATE:g} requests/s")
            if planned.engines < 2:
                raise FailedRequests("the plan has a single engine, so there is no smaller fleet to compare with")
            runs = [
                live_run(folder, engines=engines, seconds=arguments.seconds, seed=seed)
                for seed in arguments.seeds
                for engines in (planned.engines, planned.engines - 1)
            ]
    except (FailedRequests, ProcessFailedError) as problem:
        return report_problem("plan-live", str(problem))
    figures = figures_of(planned, runs)
    print(f"{'seed':>4} {'engines':>8} {'good':>7}")
    for each in runs:
        print(f"{each.seed:>4} {each.engines:>8} {each.attainment:>7.1%}")
    print(json.dumps(figures), flush=True)
    missed = figures["planned_holds"] < figures["seeds"] or figures["one_fewer_holds"] > 0
    return int(arguments.check and missed)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="just plan-live", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"Duration of each run (default {SECONDS:g}).")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=SEEDS, metavar="N", help="Random seeds (default 0 1 2)."
    )
    parser.add_argument("--assert", dest="check", action="store_true", help="Exit 1 if the plan is wrong for a seed.")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
