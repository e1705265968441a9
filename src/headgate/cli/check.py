"""What does a configuration file mean, and what is wrong with it?"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.config.problems import Problem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="headgate.yaml", type=Path, help="configuration (headgate.yaml)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, problems included")


def run(args: argparse.Namespace) -> int:
    """Works offline: no engine is asked and nothing is started."""
    import os

    from headgate.config.explain import as_data, explain
    from headgate.config.load import load
    from headgate.config.problems import ConfigErrors
    from headgate.engines.dialects import DIALECTS
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
    if args.json:
        _print_json({"ok": True, **as_data(settings)})
    else:
        print("\n".join(explain(settings)))
        for warning in settings.warnings:
            print(f"warning: {warning}")
    return 0


def _problem(problem: "Problem") -> dict[str, object]:
    return {"file": problem.file, "line": problem.line, "place": problem.place, "message": problem.message}


def _print_json(data: dict[str, object]) -> None:
    import json

    print(json.dumps(data, indent=2))
