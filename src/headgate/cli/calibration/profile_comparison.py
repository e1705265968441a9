"""`headgate calibrate --compare`: simulates a scenario with each of two profiles."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from headgate.compose.simulation import SCHEDULERS, build_scenario
from headgate.config.engine_profiles import named_profile
from headgate.config.problems import ConfigErrors
from headgate.config.scenarios.load import load
from headgate.model.engine_profile import PROFILES
from headgate.model.units import SECOND
from headgate.planning.profile_comparison import FleetResult, ProfileComparison, with_profile
from headgate.simulation.report.confidence import PAIRS_MIN
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.report.text_table import format_percent, render_table
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.workload.error import WorkloadError

if TYPE_CHECKING:
    from headgate.config.scenarios.settings import ScenarioSettings
    from headgate.model.engine_profile import EngineProfile

SIDES: Final = ("A", "B")
T = TypeVar("T")


def run_comparison(args: argparse.Namespace) -> int:
    try:
        _check(args)
        prices = _by_side("--per-hour", args.per_hour, _dollars)
        counts = _by_side("--count", args.count, _engines)
        settings = load(args.scenario, os.environ, profiles=PROFILES, schedulers=SCHEDULERS)
        pools = {str(each.pool) for each in settings.engines}
        if args.pool is not None and args.pool not in pools:
            raise WorkloadError(f'--pool: the scenario has no pool "{args.pool}"; use {", ".join(sorted(pools))}')
        profiles = [named_profile(name, PROFILES) for name in args.compare]
        results: list[list[FleetResult]] = []
        for side, profile in zip(SIDES, profiles, strict=True):
            price, count = prices.get(side, 1.0), counts.get(side)
            results.append(
                [_run(args, settings, profile, seed=seed, per_hour=price, count=count) for seed in range(args.seeds)]
            )
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return 2
    except WorkloadError as problem:
        print(f"headgate calibrate: {problem}", file=sys.stderr)
        return 2
    comparison = ProfileComparison(tuple(results[0]), tuple(results[1]))
    _print(args, comparison)
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.scenario is None:
        raise WorkloadError("--compare needs the traffic to simulate; add --scenario FILE")
    if args.url is not None or args.out is not None:
        raise WorkloadError("--compare simulates and measures nothing; remove --url and --out")
    if args.seeds < PAIRS_MIN:
        raise WorkloadError(f"--seeds must be at least {PAIRS_MIN} for a confidence interval, not {args.seeds}")


def _by_side(option: str, words: Sequence[str], parse: Callable[[str], T]) -> dict[str, T]:
    found: dict[str, T] = {}
    for word in words:
        side, equals, value = word.partition("=")
        if side not in SIDES or not equals or side in found:
            raise WorkloadError(f'{option}: "{word}" is invalid; write A=VALUE, B=VALUE or both')
        try:
            found[side] = parse(value)
        except ValueError:
            raise WorkloadError(f'{option}: "{value}" is not a positive number') from None
    return found


def _dollars(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def _engines(text: str) -> int:
    value = int(text)
    if not 0 < value <= 1_000:
        raise ValueError
    return value


def _run(
    args: argparse.Namespace,
    settings: "ScenarioSettings",
    profile: "EngineProfile",
    *,
    seed: int,
    per_hour: float,
    count: int | None,
) -> FleetResult:
    engines, policy = with_profile(settings.engines, settings.policy, profile, pool=args.pool, count=count)
    scenario = build_scenario(replace(settings, engines=engines, policy=policy), seed)
    report = SimulationReport(scenario, scheduler=settings.scheduler)
    print(f"headgate calibrate: {profile.name}, seed {seed}", file=sys.stderr, flush=True)
    VirtualHost(scenario, report).run(None)
    tally = report.total.tally
    priced = sum(args.pool in (None, each.pool) for each in engines)
    return FleetResult(
        good=tally.good, arrivals=tally.arrivals, seconds=scenario.span_ns / SECOND, usd_per_hour=per_hour * priced
    )


def _print(args: argparse.Namespace, comparison: ProfileComparison) -> None:
    import json

    sides = list(zip(SIDES, args.compare, (comparison.a, comparison.b), strict=True))
    interval = comparison.interval
    if args.json:
        page: dict[str, object] = {
            side: {
                "profile": name,
                "usd_per_hour": runs[0].usd_per_hour,
                "good": [each.good for each in runs],
                "arrivals": [each.arrivals for each in runs],
                "good_per_usd": round(_mean([each.good_per_usd for each in runs]), 3),
            }
            for side, name, runs in sides
        }
        page["ratio"] = None if interval is None else [interval.low, interval.estimate, interval.high]
        page["verdict"] = comparison.verdict()
        print(json.dumps(page, indent=2))
        return
    table = [["profile", "file or name", "USD/h", "good/s", "good", "good per USD"]]
    for side, name, runs in sides:
        table.append(
            [
                side,
                name,
                f"{runs[0].usd_per_hour:g}",
                f"{_mean([each.good / each.seconds for each in runs]):.2f}",
                format_percent(_mean([each.attainment for each in runs])),
                f"{_mean([each.good_per_usd for each in runs]):.0f}",
            ]
        )
    print("\n".join(render_table(table, shutil.get_terminal_size(fallback=(100, 24)).columns)))
    print(f"\n{comparison.verdict()}")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
