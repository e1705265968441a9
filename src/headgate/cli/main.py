"""Which verb does the command line ask for?

Each verb is a file of its own with `add_arguments(parser)` and `run(args) -> exit code`. Only the
one that was asked for is imported, and it imports what it needs when it runs, so that `--help`
answers at once. Exit codes: 0 all is well, 1 a problem was found, 2 the command line is wrong, 70 (from
`serve`) we found a mistake of our own, 141 whoever read the output left before its end, as `head` does.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType

from headgate import __version__

VERBS: Mapping[str, str] = MappingProxyType(
    {
        "demo": "show a gateway under pressure, with simulated engines and traffic",
        "init": "write a first configuration for a kind of traffic, or for a running engine",
        "serve": "run the gateway",
        "scheduler": "schedule for a cell of gateways, and serve nobody",
        "check": "say what a configuration file means and what is wrong with it",
        "classify": "show which class a request would get, and by which rule",
        "doctor": "compare a configuration with the engines and the machine",
        "status": "say what a running gateway is doing",
        "top": "watch a running gateway, second by second",
        "explain": "say why a request waited, went where it went, or was refused",
        "keys": "make, hash, rotate and revoke the keys of callers",
        "tenants": "say who may call, beside those in the file",
        "budgets": "say how much tenants may spend, and where they stand",
        "cost": "say what requests, tenants and days cost, and what is to come",
        "report": "say of each class whether its promise was kept, and what that cost",
        "rules": "write the rules by which Prometheus alerts",
        "dashboards": "write dashboards for Grafana",
        "operate": "hold, throttle, drain or pin something for a while",
        "ledger": "prepare the database that keeps tenants, keys and usage",
        "engine": "run a simulated engine, without a GPU",
        "simulate": "say what would become of traffic on engines, under virtual time",
        "loadtest": "send traffic that does not wait and say how the server held up",
    }
)

_READER_LEFT = 141
"""What a shell says of a program that the same has ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog="headgate", description="An inference gateway: one OpenAI-compatible endpoint before fleets of engines."
    )
    parser.add_argument("--version", action="version", version=f"headgate {__version__}")
    verbs = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True)
    parsers = {verb: verbs.add_parser(verb, help=purpose, description=purpose) for verb, purpose in VERBS.items()}
    # Before the verb only options without a value may stand, so it is the first word that is not an option.
    verb = next((word for word in arguments if not word.startswith("-")), "")
    if verb in parsers:
        import_module(f"headgate.cli.{verb}").add_arguments(parsers[verb])
    args = parser.parse_args(arguments)
    try:
        status = import_module(f"headgate.cli.{args.verb}").run(args)
        # Whoever reads may have gone, and what is still held back would only be written when Python ends.
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _READER_LEFT
    return status


if __name__ == "__main__":
    sys.exit(main())
