"""Options, output and signal handling shared by the benchmark commands."""

import argparse
import shlex
import signal
import sys
from collections.abc import Mapping
from typing import NoReturn

from bench.targets import GATEWAY


class FailedRequests(Exception):
    """Requests failed in a run, so its results are meaningless."""


def add_common_arguments(parser: argparse.ArgumentParser, *, bar: str) -> None:
    parser.add_argument("--assert", dest="check", action="store_true", help=f"exit 1 if {bar}")
    parser.add_argument(
        "--gateway-command",
        type=shlex.split,
        default=GATEWAY,
        metavar="COMMAND",
        help="command to run instead of `headgate`, to measure another version",
    )


def stop_cleanly_on_sigterm() -> None:
    """Turn SIGTERM into an exception, so that context managers stop the processes they started."""
    signal.signal(signal.SIGTERM, _exit)


def _exit(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


def print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def report_problem(command: str, text: str, *, status: int = 2) -> int:
    """Print why a benchmark command has no result, and return its exit status."""
    print_progress(f"{command}: {text}")
    return status


def window_seconds(text: str) -> float:
    """Parse the length of a measurement window."""
    seconds = float(text)
    if not 0.2 <= seconds <= 120:
        raise argparse.ArgumentTypeError("must be between 0.2 and 120 seconds")
    return seconds


def format_figures(figures: Mapping[str, float]) -> str:
    """Format the results, one per line."""
    return "\n".join(f"{name:<32} {value:>12,}" for name, value in figures.items())
