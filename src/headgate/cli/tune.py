"""Find the settings of a scenario whose change helps most, in simulation, or try one on live traffic."""

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headgate.cli.input.argument_types import add_json, duration, whole_number
from headgate.cli.output.html_file import check_html_file, write_html_file
from headgate.cli.tune_live import add_live_arguments, run_live

if TYPE_CHECKING:
    from headgate.compose.tuning.scenario_tuning import TuneOptions
    from headgate.planning.tuning.result import TuningResult, TuningStep

SEEDS_MIN: Final = 6
"""Minimum number of seeds that confirm a change. With fewer, the confidence intervals are too wide."""
EPILOG: Final = """\
The scenario needs objectives, such as `objectives: {interactive: 99%}`. The exit status is 1 if the result still misses
an objective. docs/guides/tune.md explains the result.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        metavar="SCENARIO.yaml",
        help="Scenario file. With --live: nothing, status or abort.",
    )
    parser.add_argument(
        "--rank", action="store_true", help="Only rank single changes. Do not look for further changes after the first."
    )
    parser.add_argument(
        "--settings",
        default="*",
        metavar="PATTERN",
        help='Settings to change, such as "classes.*" (default: all).',
    )
    parser.add_argument(
        "--seeds",
        type=_seeds,
        default=SEEDS_MIN,
        metavar="N",
        help=f"Number of random seeds that confirm a change (default and minimum {SEEDS_MIN}).",
    )
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help="First random seed (default 0).")
    parser.add_argument(
        "--window", type=duration, metavar="DURATION", help="Busiest window (default: about 1,500 requests)."
    )
    parser.add_argument(
        "--budget", type=_runs, default=5_000, metavar="N", help="Maximum number of simulated runs (default 5000)."
    )
    parser.add_argument(
        "--processes", type=_processes, default=1, metavar="N", help="Maximum number of processes (default 1)."
    )
    add_json(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="Output file for an HTML report (default: none).")
    add_live_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if args.live:
        return run_live(args, None if args.file is None else str(args.file))
    if args.file is None:
        print("headgate tune: no scenario; name a scenario file, or use --live with --set", file=sys.stderr)
        return 2
    return _run_scenario(args)


def _run_scenario(args: argparse.Namespace) -> int:
    from headgate.config.problems import ConfigErrors
    from headgate.simulation.workload.error import WorkloadError

    try:
        if args.html is not None:
            check_html_file(args.html)
        result = _tune(args)
        if args.html is not None:
            from headgate.planning.tuning.page import render_tuning_page

            write_html_file(args.html, render_tuning_page(result))
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return 2
    except WorkloadError as problem:
        print(f"headgate tune: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("headgate tune: stopped; there is no partial result", file=sys.stderr)
        return 1
    _print(result, as_json=args.json)
    return 0 if result.holds else 1


def _tune(args: argparse.Namespace) -> "TuningResult":
    from headgate.compose.simulation import SCHEDULERS
    from headgate.compose.tuning.scenario_tuning import tune_scenario
    from headgate.compose.tuning.variants import load_variants
    from headgate.model.engine_profile import PROFILES

    variants = load_variants(args.file, os.environ, profiles=PROFILES, schedulers=SCHEDULERS)
    for warning in variants.settings().warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return tune_scenario(
        variants, _options(args), _print_progress if sys.stderr.isatty() else lambda _step, _runs: None
    )


def _print_progress(step: "TuningStep", runs: int) -> None:
    found = str(step.suggestions[0].change) if step.suggestions else "nothing further to change"
    print(f"{step.settings} settings tried, {runs} runs: {found}", file=sys.stderr)


def _options(args: argparse.Namespace) -> "TuneOptions":
    from headgate.compose.tuning.scenario_tuning import TuneOptions

    return TuneOptions(
        settings=args.settings,
        only_rank=args.rank,
        seeds=args.seeds,
        first_seed=args.seed,
        window_ns=args.window,
        runs_max=args.budget,
        processes=args.processes,
    )


def _print(result: "TuningResult", *, as_json: bool) -> None:
    import json

    from headgate.planning.tuning.report import render_tuning, tuning_json

    width = shutil.get_terminal_size(fallback=(100, 24)).columns
    print(json.dumps(tuning_json(result), indent=2) if as_json else render_tuning(result, width))


def _seeds(text: str) -> int:
    return _within(text, SEEDS_MIN, 1_000)


def _seed(text: str) -> int:
    return _within(text, 0, 2**31)


def _runs(text: str) -> int:
    return _within(text, 10, 10_000_000)


def _processes(text: str) -> int:
    return _within(text, 1, 1_000)


def _within(text: str, least: int, most: int) -> int:
    value = whole_number(text)
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"must be from {least} to {most}, not {text}")
    return value
