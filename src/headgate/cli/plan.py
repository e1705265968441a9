"""Find the fewest endpoints that hold the objectives of a workload, and what they cost."""

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headgate.cli.input.argument_types import add_json, duration, whole_number
from headgate.cli.output.html_file import check_html_file, write_html_file

if TYPE_CHECKING:
    from headgate.compose.planning import PlanOptions
    from headgate.config.scenarios.settings import ScenarioSettings
    from headgate.model.units import Duration
    from headgate.planning.plan import CapacityPlan

MULTIPLIERS: Final = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
TRAFFIC_MAX: Final = 100.0
VOLUME_MIN: Final = 1_000
VOLUME_MAX: Final = 100 * 10**9
EPILOG: Final = """\
The scenario needs objectives, such as `objectives: {interactive: 99%}`. Most runs simulate only the busiest window of
the workload. docs/guides/plan.md explains the result.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("file", type=Path, metavar="SCENARIO.yaml", help="Scenario file.")
    parser.add_argument(
        "--headroom", type=_share, default=0.2, metavar="SHARE", help="Additional traffic to allow for (default 20%%)."
    )
    parser.add_argument(
        "--traffic",
        type=_multipliers,
        default=MULTIPLIERS,
        metavar="LIST",
        help="Traffic of the cost curve, relative to the workload (default 0.5,0.75,1,1.25,1.5,2).",
    )
    parser.add_argument("--growth", type=_share, metavar="SHARE", help="Growth of the traffic per month, such as 10%%.")
    parser.add_argument(
        "--window", type=duration, metavar="DURATION", help="Busiest window (default: about 1,500 requests)."
    )
    parser.add_argument(
        "--cold-start",
        type=_durations,
        default=(),
        metavar="LIST",
        help="Times to replace an endpoint, such as 30s,5m (default: from the scenario, otherwise 2m).",
    )
    parser.add_argument("--seeds", type=_count, default=3, metavar="N", help="Number of random seeds (default 3).")
    parser.add_argument(
        "--endpoints-max",
        type=_endpoints,
        metavar="N",
        help="Maximum endpoints per pool (default 64, or 2,000 per cell with --requests-per-day).",
    )
    parser.add_argument(
        "--processes", type=_count, default=1, metavar="N", help="Maximum number of processes (default 1)."
    )
    parser.add_argument(
        "--requests-per-day",
        type=_volumes,
        metavar="LIST",
        help="Plan cells, gateways and GPUs for these volumes, such as 1M,10M,1B, instead of the scenario's own.",
    )
    parser.add_argument(
        "--cell-requests-per-s",
        type=_positive,
        metavar="N",
        help="Maximum requests per second of a cell, for --requests-per-day (default 500, as measured).",
    )
    parser.add_argument(
        "--core-per-hour",
        type=_positive,
        default=0.05,
        metavar="USD",
        help="Price of a CPU core, for --requests-per-day (default 0.05).",
    )
    parser.add_argument(
        "--no-alternatives",
        dest="alternatives",
        action="store_false",
        help="Do not compare the plan with the scenario's alternatives and with a pool for long prompts.",
    )
    add_json(parser)
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="Output file for an HTML report with charts (default: none)."
    )


def run(args: argparse.Namespace) -> int:
    from headgate.config.problems import ConfigErrors
    from headgate.planning.search import NoPlan
    from headgate.simulation.workload.error import WorkloadError

    try:
        if args.requests_per_day is not None:
            return _run_volumes(args)
        if args.html is not None:
            check_html_file(args.html)
        plan = _plan(args)
        if args.html is not None:
            from headgate.planning.plan_page import render_plan_page

            write_html_file(args.html, render_plan_page(plan))
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return 2
    except WorkloadError as problem:
        print(f"headgate plan: {problem}", file=sys.stderr)
        return 2
    except NoPlan as missed:
        print(f"headgate plan: {missed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("headgate plan: stopped; there is no partial plan", file=sys.stderr)
        return 1
    _print(plan, as_json=args.json)
    return 0


def _plan(args: argparse.Namespace) -> "CapacityPlan":
    from headgate.compose.planning import plan_scenario

    return plan_scenario(_settings(args), _options(args))


def _settings(args: argparse.Namespace) -> "ScenarioSettings":
    from headgate.compose.simulation import SCHEDULERS
    from headgate.config.scenarios.load import load
    from headgate.model.engine_profile import PROFILES

    settings = load(args.file, os.environ, profiles=PROFILES, schedulers=SCHEDULERS)
    for warning in settings.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return settings


def _run_volumes(args: argparse.Namespace) -> int:
    if (option := _option_without_effect(args)) is not None:
        hint = "; use --json" if option == "--html" else ""
        print(f"headgate plan: {option} has no effect with --requests-per-day{hint}", file=sys.stderr)
        return 2
    _print_volumes(args)
    return 0


def _option_without_effect(args: argparse.Namespace) -> str | None:
    unused = {
        "--html": args.html is not None,
        "--traffic": args.traffic != MULTIPLIERS,
        "--growth": args.growth is not None,
        "--cold-start": args.cold_start != (),
        "--processes": args.processes != 1,
        "--no-alternatives": not args.alternatives,
    }
    return next((option for option, is_set in unused.items() if is_set), None)


def _print_volumes(args: argparse.Namespace) -> None:
    import json

    from headgate.compose.volume_planning import ENDPOINTS_MAX, VolumeOptions, plan_volumes
    from headgate.planning.measured import CELL_REQUESTS_PER_S
    from headgate.planning.volume_report import render_volumes, volumes_json

    settings = _settings(args)
    options = VolumeOptions(
        requests_per_day=args.requests_per_day,
        headroom=args.headroom,
        cell_requests_per_s=args.cell_requests_per_s or CELL_REQUESTS_PER_S.value,
        core_usd_per_hour=args.core_per_hour,
        window_ns=args.window,
        seeds=tuple(range(args.seeds)),
        endpoints_max=args.endpoints_max or ENDPOINTS_MAX,
    )
    mix, plans = plan_volumes(settings, options)
    if args.json:
        print(json.dumps(volumes_json(settings.title, mix, plans), indent=2))
    else:
        print(render_volumes(settings.title, mix, plans, shutil.get_terminal_size(fallback=(100, 24)).columns))


def _options(args: argparse.Namespace) -> "PlanOptions":
    from headgate.compose.planning import PlanOptions
    from headgate.planning.search import ENDPOINTS_MAX

    return PlanOptions(
        headroom=args.headroom,
        multipliers=args.traffic,
        growth_per_month=args.growth,
        window_ns=args.window,
        cold_starts_ns=args.cold_start,
        alternatives=args.alternatives,
        seeds=tuple(range(args.seeds)),
        endpoints_max=args.endpoints_max or ENDPOINTS_MAX,
        processes=args.processes,
    )


def _print(plan: "CapacityPlan", *, as_json: bool) -> None:
    import json

    from headgate.planning.plan_report import plan_json, render_plan

    width = shutil.get_terminal_size(fallback=(100, 24)).columns
    print(json.dumps(plan_json(plan), indent=2) if as_json else render_plan(plan, width))


def _share(text: str) -> float:
    from headgate.config.quantities import InvalidQuantity, share

    try:
        value = share(text)
    except InvalidQuantity as expected:
        raise argparse.ArgumentTypeError(f'expected {expected}, not "{text}"') from None
    if not 0 <= value <= TRAFFIC_MAX:
        raise argparse.ArgumentTypeError(f"must be from 0 to {TRAFFIC_MAX:g}, not {text}")
    return value


def _durations(text: str) -> "tuple[Duration, ...]":
    from headgate.model.units import Duration

    return tuple(dict.fromkeys(Duration(duration(each)) for each in text.split(",")))


def _multipliers(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(each) for each in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f'expected numbers such as 0.5,1,2, not "{text}"') from None
    if not all(0 < each <= TRAFFIC_MAX for each in values):
        raise argparse.ArgumentTypeError(f"each number must be more than 0 and at most {TRAFFIC_MAX:g}, not {text}")
    return values


def _volumes(text: str) -> tuple[int, ...]:
    units = {"k": 10**3, "M": 10**6, "B": 10**9}
    try:
        values = tuple(
            round(float(each[:-1]) * units[each[-1]]) if each[-1:] in units else int(each) for each in text.split(",")
        )
    except ValueError:
        raise argparse.ArgumentTypeError(f'expected numbers such as 500k,10M,1B, not "{text}"') from None
    if not all(VOLUME_MIN <= each <= VOLUME_MAX for each in values):
        raise argparse.ArgumentTypeError(f"each number must be from 1k to 100B, not {text}")
    return values


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < TRAFFIC_MAX * TRAFFIC_MAX:
        raise argparse.ArgumentTypeError(f'expected a number above 0 and below 10000, not "{text}"')
    return value


def _count(text: str) -> int:
    return _from_1_to(1_000, text)


def _endpoints(text: str) -> int:
    return _from_1_to(10_000, text)


def _from_1_to(most: int, text: str) -> int:
    value = whole_number(text)
    if not 1 <= value <= most:
        raise argparse.ArgumentTypeError(f"must be from 1 to {most}, not {text}")
    return value
