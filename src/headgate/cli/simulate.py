"""What would become of this traffic on these engines?"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headgate.simulation.report.report import Report
    from headgate.simulation.virtual.scenario import Scenario

SCHEDULERS: Final = ("headgate", "round-robin", "least-outstanding", "static-cap", "saturation-gate")
EPILOG: Final = """\
Time is only a number here: an hour takes seconds. The same scenario and seed give the same report, byte for byte.
docs/reference/scenarios.md says what stands in a scenario's file.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("file", type=Path, metavar="SCENARIO.yaml", help="what to simulate")
    parser.add_argument("--seed", type=_whole, default=0, metavar="N", help="what all that is drawn is drawn from (0)")
    parser.add_argument("--scheduler", choices=SCHEDULERS, metavar="NAME", help=f"another one: {', '.join(SCHEDULERS)}")
    parser.add_argument("--cap", type=_count, metavar="N", help="what static-cap gives to an engine at once")
    parser.add_argument(
        "--duration", type=_duration, metavar="TIME", help="stop arrivals after so long, such as 90s, 10m or 2h"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with charts")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(args: argparse.Namespace) -> int:
    from headgate.config.problems import ConfigErrors
    from headgate.simulation.workload.problem import Problem

    try:
        if args.html is not None:
            _check_page(args.html)
        scenario, scheduler = _scenario(args)
        report = _simulate(scenario, scheduler, quiet=args.quiet)
        try:
            _tell(report, json=args.json)
        finally:  # Neither the report nor the page is lost with the other.
            if args.html is not None:
                _write_page(report, args.html)
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return 2
    except Problem as problem:
        print(f"headgate simulate: {problem}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"headgate simulate: {where}{error.strerror}", file=sys.stderr)
        return 2
    except (Stopped, Unsaid) as stopped:
        print(f"headgate simulate: {stopped}", file=sys.stderr)
        return 1
    return 0


class Stopped(Exception):
    """Somebody pressed Ctrl-C. The message says how far the run was."""


class Unsaid(Exception):
    """The report cannot be written to where it should go."""


def _scenario(args: argparse.Namespace) -> "tuple[Scenario, str]":
    """What is to be simulated, and what its scheduler is called."""
    from dataclasses import replace

    from headgate.compose.simulation import SCHEDULERS, scenario, warnings, warnings_of_many
    from headgate.config.scenarios.load import CAPPED, load
    from headgate.model.engine_profile import PROFILES
    from headgate.simulation.workload.problem import Problem

    settings = load(args.file, os.environ, profiles=PROFILES, schedulers=SCHEDULERS)
    _warn(settings.warnings)
    settings = replace(
        settings,
        scheduler=args.scheduler or settings.scheduler,
        cap=args.cap or settings.cap,
        duration_ns=args.duration or settings.duration_ns,
    )
    if args.cap is not None and settings.scheduler != CAPPED:
        raise Problem(f"--cap means nothing with {settings.scheduler}; add --scheduler {CAPPED}, or leave it out")
    _warn(warnings_of_many(settings))
    simulated = scenario(settings, args.seed)
    _warn(warnings(simulated))
    return simulated, settings.scheduler


def _warn(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


def _simulate(scenario: "Scenario", scheduler: str, *, quiet: bool) -> "Report":
    """Raises `Stopped` where somebody does not want to wait for the end."""
    import shutil

    from headgate.cli.output.simulation_progress import Progress, clock_time
    from headgate.simulation.report.report import Report
    from headgate.simulation.virtual.host import VirtualHost

    report = Report(scenario, scheduler=scheduler)
    host = VirtualHost(scenario, report)
    width = shutil.get_terminal_size().columns
    progress = Progress(scenario.span_ns, _to_stderr, time.monotonic, terminal=sys.stderr.isatty(), width=width)
    try:
        host.run(None if quiet else progress)
    except KeyboardInterrupt:
        where = f" at {clock_time(progress.now_ns / 1e9)} of {clock_time(scenario.span_ns / 1e9)}"
        raise Stopped(f"stopped{where if progress.now_ns else ''}; there is no report of a part") from None
    finally:
        if not quiet:
            progress.clear()
    return report


def _check_page(file: Path) -> None:
    """Before the run, which may take a while: can a page be made and written at its end?"""
    from importlib.util import find_spec

    from headgate.simulation.workload.problem import Problem

    if not file.parent.is_dir():
        raise Problem(f"{file}: there is no folder {file.parent}; make it first")
    if file.is_dir():
        raise Problem(f"{file} is a folder; name a file")
    if find_spec("matplotlib") is None:
        how = "pip install matplotlib (or, in a checkout, pip install '.[reports]')"
        raise Problem(f"a page has charts, and matplotlib is not installed; {how}")


def _write_page(report: "Report", file: Path) -> None:
    from headgate.simulation.report.page import page
    from headgate.simulation.workload.problem import Problem

    try:
        file.write_text(page(report), encoding="utf-8")
    except OSError as error:
        raise Problem(f"{file}: the page cannot be written: {error.strerror}") from None
    print(f"wrote {file}", file=sys.stderr)


def _tell(report: "Report", *, json: bool) -> None:
    import json as encoding
    import shutil

    from headgate.simulation.report.figures import figures_of
    from headgate.simulation.report.table import text

    width = shutil.get_terminal_size(fallback=(100, 24)).columns
    try:
        print(encoding.dumps(figures_of(report), indent=2) if json else text(report, width), flush=True)
    except OSError as error:
        # Python would complain once more when it leaves.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # Whoever closes a pipe has enough.
            raise Unsaid(f"the report cannot be written: {error.strerror}") from None


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _duration(text: str) -> int:
    """Nanoseconds, as a scenario's file writes them."""
    from headgate.config.quantities import Unreadable, duration

    try:
        length = duration(text)
    except Unreadable as expected:
        raise argparse.ArgumentTypeError(f'expected {expected}, not "{text}"') from None
    if length <= 0:
        raise argparse.ArgumentTypeError(f"must be more than 0s, not {text}")
    return length


def _whole(text: str) -> int:
    from headgate.config.quantities import Unreadable, whole_number

    try:
        return whole_number(text)
    except Unreadable as expected:
        raise argparse.ArgumentTypeError(f'expected {expected}, such as 7, not "{text}"') from None


def _count(text: str) -> int:
    value = _whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value
