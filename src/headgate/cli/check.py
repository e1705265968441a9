"""Show what a configuration file means, and report its problems.

Fails if `headgate serve` would: problems in the file, optional libraries that are not installed, or workers that cannot
run with it. It works offline; `--connect` also connects to the store of the cell and the database.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.cli.checkup.finding import Finding
    from headgate.config.problems import Problem
    from headgate.config.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="headgate.yaml", type=Path, help="configuration (headgate.yaml)")
    parser.add_argument("--workers", type=int, metavar="N", help="check for `headgate serve --workers N`")
    parser.add_argument("--connect", action="store_true", help="also connect to the store of the cell and the database")
    parser.add_argument("--json", action="store_true", help="print one JSON object, problems included")


def run(args: argparse.Namespace) -> int:
    """Sends nothing to engines and starts nothing."""
    import os

    from headgate.config.explain import as_data, explain
    from headgate.config.load import load
    from headgate.config.problems import ConfigErrors
    from headgate.config.protections import as_rows, protection_lines, protections
    from headgate.engines.dialects import DIALECTS, readable_kv
    from headgate.model.engine_profile import PROFILES

    file: Path = args.file
    try:
        settings = load(file, os.environ, engines=DIALECTS.keys(), profiles=PROFILES)
    except ConfigErrors as errors:
        if args.json:
            _print_json({"ok": False, "problems": [_problem(each) for each in errors.problems]})
        else:
            print(errors, file=sys.stderr)
        return 1
    obstacles = _obstacles(settings, file, workers=args.workers, connect=args.connect)
    if args.json:
        problems = {"problems": [_problem(each) for each in obstacles]} if obstacles else {}
        rows = {"protections": as_rows(protections(settings, readable=readable_kv()))}
        _print_json({"ok": not obstacles, **problems, **as_data(settings), **rows})
    else:
        print("\n".join(explain(settings)))
        for warning in settings.warnings:
            print(f"warning: {warning}")
        print("\n".join(protection_lines(protections(settings, readable=readable_kv()))))
        for obstacle in obstacles:
            print(obstacle, file=sys.stderr)
    return 1 if obstacles else 0


def _obstacles(settings: "Settings", file: Path, *, workers: int | None, connect: bool) -> "list[Problem]":
    """Reasons why `headgate serve` would fail with a valid file, each with the fix."""
    from headgate.config.extras import missing_extras
    from headgate.config.problems import Problem
    from headgate.config.workers import unfit

    found = [Problem(str(file), None, each.place, f"{each.message}; {each.fix}") for each in missing_extras(settings)]
    if workers is not None and (wrong := unfit(settings, file, workers)):
        found.append(Problem("", None, "--workers", wrong))
    if connect:
        import asyncio

        away = asyncio.run(_unreachable(settings))
        found += [Problem(str(file), None, each.about, f"{each.message}; {each.next}") for each in away]
    return found


async def _unreachable(settings: "Settings") -> "list[Finding]":
    from headgate.cli.checkup.database import look_at_database
    from headgate.cli.checkup.finding import Level
    from headgate.cli.checkup.store import look_at_store

    findings = [*await look_at_store(settings), *await look_at_database(settings)]
    return [each for each in findings if each.level is Level.PROBLEM]


def _problem(problem: "Problem") -> dict[str, object]:
    return {"file": problem.file, "line": problem.line, "place": problem.place, "message": problem.message}


def _print_json(data: dict[str, object]) -> None:
    import json

    print(json.dumps(data, indent=2))
