"""What do benchmarks have in common as commands? What they say to people, and how they are told to stop."""

import argparse
import shlex
import signal
import sys
from collections.abc import Mapping
from typing import NoReturn

from bench.targets import GATEWAY


class WrongAnswers(Exception):
    """Figures of a run in which something failed say nothing."""


def add_common_arguments(parser: argparse.ArgumentParser, *, bar: str) -> None:
    parser.add_argument("--assert", dest="check", action="store_true", help=f"exit 1 when {bar}")
    parser.add_argument(
        "--gateway-command",
        type=shlex.split,
        default=GATEWAY,
        metavar="COMMAND",
        help="what stands for `headgate`, to measure another version of it",
    )


def stop_cleanly_on_sigterm() -> None:
    """By an exception, so that every block is left and what it started is stopped."""
    signal.signal(signal.SIGTERM, _leave)


def _leave(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def listed(figures: Mapping[str, float]) -> str:
    """One below the other, for people."""
    return "\n".join(f"{name:<32} {value:>12,}" for name, value in figures.items())
