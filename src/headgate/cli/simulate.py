"""Simulate traffic against a fleet in virtual time and report how each class and tenant fared."""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headgate.cli.input.argument_types import add_json, duration, whole_number

if TYPE_CHECKING:
    from headgate.simulation.report.report import SimulationReport
    from headgate.simulation.virtual.scenario import Scenario

SCHEDULERS: Final = ("headgate", "round-robin", "least-outstanding", "static-cap", "saturation-gate")
EPILOG: Final = """\
An hour of virtual time takes seconds. The same scenario and seed give an identical report.
docs/reference/scenarios.md describes the scenario file.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("file", type=Path, metavar="SCENARIO.yaml", help="Scenario file.")
    parser.add_argument("--seed", type=whole_number, default=0, metavar="N", help="Random seed (default 0).")
    parser.add_argument("--scheduler", choices=SCHEDULERS, help="Scheduler (default: from the scenario).")
    parser.add_argument(
        "--cap", type=_count, metavar="N", help="Requests per engine for static-cap (default: from the scenario)."
    )
    parser.add_argument(
        "--duration",
        type=duration,
        metavar="DURATION",
        help="Duration of the traffic, such as 90s, 10m or 2h (default: from the scenario).",
    )
    add_json(parser)
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="Output file for an HTML report with charts (default: none)."
    )
    parser.add_argument("--quiet", action="store_true", help="No progress output.")


def run(args: argparse.Namespace) -> int:
    from headgate.cli.output.html_file import check_html_file, write_html_file
    from headgate.config.problems import ConfigErrors
    from headgate.simulation.report.html_report import render_html
    from headgate.simulation.workload.error import WorkloadError

    try:
        if args.html is not None:
            check_html_file(args.html)
        scenario, scheduler = _scenario(args)
        report = _simulate(scenario, scheduler, quiet=args.quiet)
        try:
            _print_report(report, json=args.json)
        finally:  # Write the page even if the report cannot be printed.
            if args.html is not None:
                write_html_file(args.html, render_html(report))
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return 2
    except WorkloadError as problem:
        print(f"headgate simulate: {problem}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"headgate simulate: {where}{error.strerror}", file=sys.stderr)
        return 2
    except (SimulationInterrupted, ReportNotWritten) as stopped:
        print(f"headgate simulate: {stopped}", file=sys.stderr)
        return 1
    return 0


class SimulationInterrupted(Exception):
    """The run was interrupted with Ctrl-C. The message includes the progress so far."""


class ReportNotWritten(Exception):
    """The report cannot be written to stdout."""


def _scenario(args: argparse.Namespace) -> "tuple[Scenario, str]":
    """The scenario, and its scheduler's name."""
    from dataclasses import replace

    from headgate.compose.simulation import SCHEDULERS, build_scenario
    from headgate.config.scenarios.load import STATIC_CAP, load
    from headgate.model.engine_profile import PROFILES
    from headgate.simulation.virtual.scenario_warnings import late_fault_warnings, size_warnings
    from headgate.simulation.workload.error import WorkloadError

    settings = load(args.file, os.environ, profiles=PROFILES, schedulers=SCHEDULERS)
    _warn(settings.warnings)
    settings = replace(
        settings,
        scheduler=args.scheduler or settings.scheduler,
        cap=args.cap or settings.cap,
        duration_ns=args.duration or settings.duration_ns,
    )
    if args.cap is not None and settings.scheduler != STATIC_CAP:
        raise WorkloadError(
            f"--cap has no effect with {settings.scheduler}; add --scheduler {STATIC_CAP}, or remove it"
        )
    _warn(size_warnings(settings.traffic, settings.duration_ns))
    simulated = build_scenario(settings, args.seed)
    _warn(late_fault_warnings(simulated))
    return simulated, settings.scheduler


def _warn(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


def _simulate(scenario: "Scenario", scheduler: str, *, quiet: bool) -> "SimulationReport":
    """Raises `SimulationInterrupted` if the run is interrupted."""
    import shutil

    from headgate.cli.output.simulation_progress import SimulationProgress, clock_time
    from headgate.simulation.report.report import SimulationReport
    from headgate.simulation.virtual.host import VirtualHost

    report = SimulationReport(scenario, scheduler=scheduler)
    host = VirtualHost(scenario, report)
    width = shutil.get_terminal_size().columns
    progress = SimulationProgress(
        scenario.span_ns, _to_stderr, time.monotonic, terminal=sys.stderr.isatty(), width=width
    )
    try:
        host.run(None if quiet else progress)
    except KeyboardInterrupt:
        where = f" at {clock_time(progress.now_ns / 1e9)} of {clock_time(scenario.span_ns / 1e9)}"
        raise SimulationInterrupted(f"stopped{where if progress.now_ns else ''}; there is no partial report") from None
    finally:
        if not quiet:
            progress.clear()
    return report


def _print_report(report: "SimulationReport", *, json: bool) -> None:
    import json as encoding
    import shutil

    from headgate.simulation.report.json_report import json_report
    from headgate.simulation.report.text_report import render_text

    width = shutil.get_terminal_size(fallback=(100, 24)).columns
    try:
        print(encoding.dumps(json_report(report), indent=2) if json else render_text(report, width), flush=True)
    except OSError as error:
        # Without this, Python would report the error again on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # The reader closed the pipe on purpose.
            raise ReportNotWritten(f"cannot write the report: {error.strerror}") from None


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _count(text: str) -> int:
    value = whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value
