"""How is a process started that schedules for a cell and serves nobody?

It is a candidate like the gateways, or the only kind of candidate where the configuration says so. It has no listener
for callers, so the machine that decides for all is not the one that is busy with their streams.
"""

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from headgate.cli.serve import add_process_arguments, run_gateway

if TYPE_CHECKING:
    from headgate.config.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process_arguments(parser)
    parser.add_argument(
        "--admin-listen", type=_address, metavar="HOST:PORT", help="where operators connect (admin_listen of the file)"
    )


def run(args: argparse.Namespace) -> int:
    """The same signals as for `serve`."""

    def adapt(settings: "Settings") -> "Settings":
        from headgate.config.settings import Address

        elsewhere: tuple[str, int] | None = args.admin_listen
        return settings if elsewhere is None else replace(settings, admin_listen=Address(*elsewhere))

    def refuse(settings: "Settings") -> str | None:
        if settings.cell is not None:
            return None
        next_step = "add cell: {store: redis://HOST:PORT} to it, or run `headgate serve`"
        return f"{args.file} names no cell, so there is nobody to schedule for; {next_step}"

    return run_gateway(args, adapt=adapt, refuse=refuse, serves=False)


def _address(text: str) -> tuple[str, int]:
    from headgate.config.quantities import Unreadable, address

    try:
        return address(text)
    except Unreadable as expected:
        raise argparse.ArgumentTypeError(f"expected {expected}") from None
