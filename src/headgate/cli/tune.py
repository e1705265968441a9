"""Try a setting on the live traffic of a running gateway."""

import argparse
import sys

from headgate.cli.input.argument_types import add_json
from headgate.cli.tune_live import add_live_arguments, run_live


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", metavar="ACTION", help="With --live: status or abort.")
    add_json(parser)
    add_live_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if not args.live:
        print("headgate tune: set --live", file=sys.stderr)
        return 2
    return run_live(args, args.action)
