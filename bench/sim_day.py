"""Measure how long it takes to simulate a day with a million requests, and where the time is spent.

The full day is timed without the profiler. Then a part of it runs under the profiler, which slows everything down,
Python calls most. The profile is reported as shares per package. The last line is JSON.
"""

import argparse
import cProfile
import json
import os
import pstats
import sys
from dataclasses import replace
from pathlib import Path
from time import process_time

from bench.cli import print_progress
from headgate.compose.simulation import SCHEDULERS, build_scenario
from headgate.config.problems import ConfigErrors
from headgate.config.scenarios.load import load
from headgate.model.engine_profile import PROFILES
from headgate.model.units import MINUTE, Duration
from headgate.simulation.report.json_report import json_report
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.scenario import Scenario

DAY = Path(__file__).parent.parent / "scenarios" / "day.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(prog="sim-day", description=__doc__.partition("\n")[0])
    parser.add_argument("--hours", type=float, default=24.0, help="hours to simulate (default 24)")
    parser.add_argument("--profiled-minutes", type=float, default=60.0, help="minutes to profile (default 60)")
    arguments = parser.parse_args()
    requests, cpu_s = timed(part_of_day(arguments.hours * 60))
    print(f"{requests} requests: {cpu_s:.1f} s of CPU, {cpu_s / requests * 1e6:.0f} µs per request")
    shares = shares_by_package(part_of_day(arguments.profiled_minutes))
    for room, share in shares.items():
        print(f"{room:24} {share:6.1%}")
    print(json.dumps({"requests": requests, "cpu_s": round(cpu_s, 1), "shares": shares}))


def part_of_day(minutes: float) -> Scenario:
    try:
        settings = load(DAY, os.environ, profiles=PROFILES, schedulers=SCHEDULERS)
    except ConfigErrors as errors:
        sys.exit(str(errors))
    return build_scenario(replace(settings, duration_ns=Duration(round(minutes * MINUTE))), seed=1)


def timed(day: Scenario) -> tuple[int, float]:
    report = SimulationReport(day)
    started = process_time()
    VirtualHost(day, report, samples=24).run(
        lambda now, over: print_progress(f"{now / MINUTE / 60:4.1f} h, {over} requests")
    )
    return json_report(report)["total"]["arrivals"], process_time() - started


def shares_by_package(day: Scenario) -> dict[str, float]:
    profile = cProfile.Profile()
    profile.runcall(VirtualHost(day, SimulationReport(day)).run)
    spent: dict[str, float] = {}
    for (file, _, _), (_, _, own_s, _, callers) in pstats.Stats(profile).stats.items():
        if (room := _package(file)) is not None:
            spent[room] = spent.get(room, 0.0) + own_s
        else:
            # Time in built-in functions is attributed to their callers.
            for (caller, _, _), (_, _, for_caller_s, _) in callers.items():
                room = _package(caller) or "elsewhere"
                spent[room] = spent.get(room, 0.0) + for_caller_s
    total = sum(spent.values())
    ordered = sorted(spent.items(), key=lambda each: -each[1])
    return {room: round(seconds / total, 3) for room, seconds in ordered if seconds > total / 1000}


def _package(file: str) -> str | None:
    if "/headgate/" not in file:
        return None
    parts = file.rpartition("/headgate/")[2].split("/")
    return "/".join(parts[:2]) if parts[0] == "simulation" else parts[0]


if __name__ == "__main__":
    main()
