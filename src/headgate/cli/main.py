"""Entry point of the `headgate` command.

Each verb is a module with `add_arguments(parser)` and `run(args) -> exit code`. Only the given verb's module is
imported, and it imports its dependencies when it runs, so that `--help` is fast. The exit codes are 0 for success, 1 if
a problem was found, 2 for an invalid command line, 70 for an internal error (from `serve`), and 141 if the reader
closed the output, as `head` does.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType, ModuleType

from headgate import __version__
from headgate.build import BUILD

GROUPS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "Run": {
            "demo": "Run a gateway with simulated engines and traffic.",
            "init": "Write a first configuration file.",
            "convert": "Convert the configuration of another gateway or proxy.",
            "serve": "Run the gateway.",
            "scheduler": "Run a scheduler-only node of a cell.",
            "engine": "Run simulated engines, without a GPU.",
        },
        "Inspect": {
            "check": "Check a configuration file and show what it configures.",
            "doctor": "Compare a configuration with its engines and this machine.",
            "diff": "Show what a new configuration file would change.",
            "classify": "Show which class a request gets and which rule chose it.",
            "status": "Show the state of a running gateway.",
            "top": "Watch a running gateway.",
            "explain": "Show why a request waited, where it went or why it was rejected.",
            "report": "Show whether each class met its objectives.",
        },
        "Operate": {
            "cells": "Assign tenants to cells and divide their limits.",
            "audit": "Show the changes that operators made and the tenant data that they read.",
            "operate": "Hold a class, throttle a tenant, drain an endpoint or pin a level.",
            "rollout": "Shift the traffic of a model to another route in steps.",
            "generate": "Generate alert rules, dashboards or the configuration schema.",
            "ledger": "Prepare the database.",
            "completion": "Print a shell completion script.",
        },
        "Accounts": {
            "tenants": "Manage the tenants in the database.",
            "keys": "Create, hash, rotate and revoke API keys.",
            "budgets": "Manage budgets and show how much of each is left.",
            "cost": "Show costs, statements, forecasts and cost drift.",
        },
        "Plan": {
            "record": "Record traffic as an anonymous trace that can be replayed.",
            "calibrate": "Measure an engine and write its profile, or compare two profiles.",
            "plan": "Find the fewest endpoints that hold the objectives, and their cost.",
            "tune": "Find the settings whose change helps most, and the evidence for it.",
            "simulate": "Simulate traffic against a fleet in virtual time.",
            "loadtest": "Send open-loop traffic to a server and measure its latency.",
        },
    }
)
VERBS: Mapping[str, str] = MappingProxyType({verb: text for group in GROUPS.values() for verb, text in group.items()})

_EXIT_BROKEN_PIPE = 141
"""Exit code that a shell reports for a process killed by SIGPIPE."""


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    # Only options that take no value may precede the verb, so it is the first word that is not an option.
    verb = next((word for word in argv if not word.startswith("-")), "")
    args = command_parser([verb] if verb in VERBS else []).parse_args(argv)
    try:
        status = verb_module(args.verb).run(args)
        # Flush here. Otherwise, writing the buffered output would fail only when Python exits.
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _EXIT_BROKEN_PIPE
    return status


def command_parser(loaded: Iterable[str]) -> argparse.ArgumentParser:
    """The parser for the complete command line. Only verbs that have been loaded have their own arguments."""
    parser = argparse.ArgumentParser(
        prog="headgate",
        usage="headgate [-h] [--version] VERB ...",
        description="\n".join(_description()),
        epilog="`headgate VERB --help` describes a verb's options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"headgate {__version__} ({BUILD})")
    # argparse cannot group verbs, so the description lists them.
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, prog="headgate", help=argparse.SUPPRESS)
    parsers = {verb: verbs.add_parser(verb, help=purpose, description=purpose) for verb, purpose in VERBS.items()}
    for verb in loaded:
        verb_module(verb).add_arguments(parsers[verb])
    return parser


def verb_module(verb: str) -> ModuleType:
    """Module that defines a verb's arguments and implements it."""
    return import_module(f"headgate.cli.{verb}")


def _description() -> Iterator[str]:
    yield "An inference gateway: one OpenAI-compatible endpoint in front of fleets of engines."
    width = max(len(verb) for verb in VERBS)
    for name, verbs in GROUPS.items():
        yield ""
        yield f"{name}:"
        yield from (f"  {verb:<{width}}  {purpose}" for verb, purpose in verbs.items())


if __name__ == "__main__":
    sys.exit(main())
