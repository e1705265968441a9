"""Show what a configuration file means, and report its problems.

The command fails whenever `headgate serve` would: if the file has problems, if optional libraries are not installed, if
certificate files cannot be used, or if workers cannot run with the file. It works offline. With `--connect`, it also
connects to the cell's store and to the database.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.input.argument_types import add_config, add_json

if TYPE_CHECKING:
    from headgate.cli.checkup.finding import CheckFinding
    from headgate.config.problems import ConfigProblem
    from headgate.config.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--workers", type=int, metavar="N", help="Number of workers for `headgate serve` (default: none)."
    )
    parser.add_argument(
        "--connect", action="store_true", help="Test the connections to the cell's store and the database."
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the checks. No request is sent to an engine, and no process is started."""
    import os

    from headgate.config.load import load
    from headgate.config.problems import ConfigErrors
    from headgate.config.protections import protection_lines, protection_rows, protections
    from headgate.config.summary import summary_data, summary_lines
    from headgate.config.tls_files import tls_warnings
    from headgate.engines.dialects import DIALECTS, engines_reporting_kv
    from headgate.model.engine_profile import PROFILES

    file: Path = args.config
    try:
        settings = load(file, os.environ, engines=DIALECTS.keys(), profiles=PROFILES)
    except ConfigErrors as errors:
        if args.json:
            _print_json({"ok": False, "problems": [_problem(each) for each in errors.problems]})
        else:
            print(errors, file=sys.stderr)
        return 1
    obstacles = _serve_problems(settings, file, workers=args.workers, connect=args.connect)
    warnings = () if obstacles else tuple(f"{file}: {each}" for each in _certificate_warnings(settings))
    if args.json:
        problems = {"problems": [_problem(each) for each in obstacles]} if obstacles else {}
        rows = {"protections": protection_rows(protections(settings, kv_readable_engines=engines_reporting_kv()))}
        _print_json({"ok": not obstacles, **problems, **summary_data(settings), **rows})
    else:
        print("\n".join(summary_lines(settings)))
        for warning in (*settings.warnings, *warnings):
            print(f"warning: {warning}")
        for warning in tls_warnings(settings, str(file)):
            print(f"warning: {warning}")
        print("\n".join(protection_lines(protections(settings, kv_readable_engines=engines_reporting_kv()))))
        for obstacle in obstacles:
            print(obstacle, file=sys.stderr)
    return 1 if obstacles else 0


def _serve_problems(settings: "Settings", file: Path, *, workers: int | None, connect: bool) -> "list[ConfigProblem]":
    """Reasons why `headgate serve` would fail with a valid file, each with a fix."""
    from headgate.config.extras import missing_extras
    from headgate.config.listener_tls import certificate_problems
    from headgate.config.problems import ConfigProblem
    from headgate.config.tls_files import tls_problems
    from headgate.config.workers import workers_problem

    found = [
        ConfigProblem(str(file), None, each.place, f"{each.message}; {each.fix}") for each in missing_extras(settings)
    ]
    found += [
        ConfigProblem(str(file), None, each.setting, each.message)
        for each in certificate_problems(settings, time.time())
    ]
    found += tls_problems(settings, str(file))
    if workers is not None and (wrong := workers_problem(settings, file, workers)):
        found.append(ConfigProblem("", None, "--workers", wrong))
    if connect:
        import asyncio

        away = asyncio.run(_unreachable(settings))
        found += [ConfigProblem(str(file), None, each.about, f"{each.message}; {each.next_step}") for each in away]
    return found


def _certificate_warnings(settings: "Settings") -> "Iterator[str]":
    from headgate.config.listener_tls import certificate_warnings

    yield from (f"{each.setting}: {each.message}" for each in certificate_warnings(settings, time.time()))


async def _unreachable(settings: "Settings") -> "list[CheckFinding]":
    from headgate.cli.checkup.database import check_database
    from headgate.cli.checkup.finding import Level
    from headgate.cli.checkup.store import check_store

    findings = [*await check_store(settings), *await check_database(settings)]
    return [each for each in findings if each.level is Level.PROBLEM]


def _problem(problem: "ConfigProblem") -> dict[str, object]:
    return {"file": problem.file, "line": problem.line, "place": problem.setting, "message": problem.message}


def _print_json(data: dict[str, object]) -> None:
    import json

    print(json.dumps(data, indent=2))
