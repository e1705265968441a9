"""Run a scheduler-only node of a cell.

The node is a candidate for the scheduler role, either alongside the gateways or, if so configured, instead of them. It
has no client listener, so scheduling does not compete with streams for CPU.
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
        "--admin-listen",
        type=_address,
        metavar="HOST:PORT",
        help="Address of the admin listener (default: admin_listen in --config).",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the node. Handles the same signals as `serve`."""

    def adapt(settings: "Settings") -> "Settings":
        from headgate.config.settings import Address

        elsewhere: tuple[str, int] | None = args.admin_listen
        return settings if elsewhere is None else replace(settings, admin_listen=Address(*elsewhere))

    def refuse(settings: "Settings") -> str | None:
        if settings.cell is not None:
            return None
        next_step = "add cell: {store: redis://HOST:PORT}, or run `headgate serve`"
        return f"{args.config} has no cell, so there are no gateways to schedule for; {next_step}"

    return run_gateway(args, adapt=adapt, rejection=refuse, serves=False)


def _address(text: str) -> tuple[str, int]:
    from headgate.config.quantities import InvalidQuantity, address

    try:
        return address(text)
    except InvalidQuantity as expected:
        raise argparse.ArgumentTypeError(f"expected {expected}") from None
