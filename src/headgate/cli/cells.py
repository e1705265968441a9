"""Assign tenants to several cells and divide their limits among the cells.

`cells.yaml` lists the cells. A cell is a group of gateways that share one scheduler.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.input.argument_types import add_actions, add_json

if TYPE_CHECKING:
    from headgate.control.cells.options import CellFleet

CELLS_FILE = Path("cells.yaml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = add_actions(parser)
    check = add("check", "Check the file and show how tenants are assigned.")
    add_json(check)
    mapping = add("map", "Print each tenant's cells for the load balancer.")
    mapping.add_argument(
        "--format", choices=("json", "nginx", "envoy"), default="json", help="Output format (default json)."
    )
    for each in (check, mapping):
        each.add_argument(
            "--tenants",
            type=Path,
            metavar="NAMES",
            help="File with one tenant per line, or - for stdin (default: pinned tenants only).",
        )
    for each in (check, mapping):
        each.add_argument(
            "--file", type=Path, default=CELLS_FILE, metavar="FILE", help=f"List of cells (default {CELLS_FILE})."
        )


def run(args: argparse.Namespace) -> int:
    from headgate.config.cells.load import load_cells
    from headgate.config.problems import ConfigErrors

    try:
        fleet = load_cells(args.file, os.environ)
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return 1
    match args.action:
        case "check":
            return _check(args, fleet)
        case _:
            return _map(args, fleet)


def _check(args: argparse.Namespace, fleet: "CellFleet") -> int:
    from headgate.cli.input.admin_request import print_json
    from headgate.control.cells.assignment import cells_of

    tenants = _tenants(args.tenants, fleet)
    if tenants is None:
        return 2
    counts = {each.name: [0, 0] for each in fleet.cells}
    for tenant in tenants:
        for order, name in enumerate(cells_of(tenant, fleet)):
            counts[name][0] += 1
            counts[name][1] += order == 0
    if args.json:
        rows = [
            {"cell": each.name, "url": each.url, "state": each.state.value, "weight": each.weight}
            | {"tenants": counts[each.name][0], "tenants_first": counts[each.name][1]}
            for each in fleet.cells
        ]
        print_json({"ok": True, "cells": rows, "cells_per_tenant": fleet.cells_per_tenant})
        return 0
    floor = fleet.share_floor_ppm / 10_000
    print(f"{len(fleet.cells)} cells, {fleet.cells_per_tenant} per tenant, share floor {floor:g} %")
    for each in fleet.cells:
        listeners = len(each.admin_urls)
        plural = "listener" if listeners == 1 else "listeners"
        assigned = f"; {counts[each.name][0]} tenants, {counts[each.name][1]} of them first" if tenants else ""
        print(f"{each.name}: {each.state.value}, weight {each.weight}, {listeners} admin {plural}{assigned}")
        if not listeners:
            print(f"warning: {args.file}: cells.{each.name}: has no admin_urls, so it always uses the share floor")
    return 0


def _map(args: argparse.Namespace, fleet: "CellFleet") -> int:
    from headgate.cli.input.admin_request import print_json
    from headgate.cli.output.cell_map import envoy_data, map_data, nginx_lines

    tenants = _tenants(args.tenants, fleet)
    if tenants is None:
        return 2
    match args.format:
        case "nginx":
            print("\n".join(nginx_lines(fleet, tenants)))
        case "envoy":
            print_json(envoy_data(fleet, tenants))
        case _:
            print_json(map_data(fleet, tenants))
    return 0


def _tenants(names: Path | None, fleet: "CellFleet") -> list[str] | None:
    """Returns the tenants in the file and the pinned ones. If the file cannot be used, prints why and returns None."""
    from headgate.config.references import is_tenant_path
    from headgate.control.cells.assignment import account_of

    try:
        text = "" if names is None else sys.stdin.read() if str(names) == "-" else names.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        print(f"headgate: cannot read {names}: {error}; write one tenant per line", file=sys.stderr)
        return None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if not is_tenant_path(line):
            print(f'headgate: "{line}" is not a tenant; write one tenant per line, such as acme', file=sys.stderr)
            return None
    return sorted({*(account_of(line) for line in lines), *fleet.pins})
