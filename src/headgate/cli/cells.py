"""Assign tenants to several cells and divide their limits among the cells.

`cells.yaml` lists the cells. A cell is a group of gateways that share one scheduler.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.input.argument_types import add_actions, add_json, tenant_path
from headgate.cli.input.operator_key import ADMIN_KEY_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headgate.control.cells.admin_access import AdminAccess
    from headgate.control.cells.controller_service import ProcessUnavailable
    from headgate.control.cells.messages import ProcessReport
    from headgate.control.cells.options import CellFleet
    from headgate.control.options import FileStamp

CELLS_FILE = Path("cells.yaml")
_STATUS_TIMEOUT_S = 5.0


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
    status = add("status", "Show each cell's shares and demand.")
    add_json(status)
    controller = add("run", "Divide the tenants' limits among their cells until stopped.")
    move = add("move", "Pin a tenant to other cells, and wait until they have room for it.")
    move.add_argument("tenant", type=tenant_path, metavar="TENANT", help="First component of the tenant's path.")
    move.add_argument("--to", required=True, metavar="CELLS", help="New cells in order of preference, such as a,b.")
    move.add_argument(
        "--wait",
        type=int,
        default=120,
        metavar="SECONDS",
        help="Maximum wait for the controller (default 120).",
    )
    for each in (check, mapping, status, controller, move):
        each.add_argument(
            "--file", type=Path, default=CELLS_FILE, metavar="FILE", help=f"List of cells (default {CELLS_FILE})."
        )


def run(args: argparse.Namespace) -> int:
    from headgate.config.cells.load import read_cells
    from headgate.config.problems import ConfigErrors

    try:
        fleet, files = read_cells(args.file, os.environ)
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return 1
    match args.action:
        case "check":
            return _check(args, fleet)
        case "status":
            return _status(args, fleet)
        case "run":
            return _run_controller(args, fleet, files)
        case "move":
            return _move(args, fleet)
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


# Commands that contact the gateways


def _status(args: argparse.Namespace, fleet: "CellFleet") -> int:
    import asyncio

    from headgate.cli.input.admin_request import print_json, print_table
    from headgate.cli.output.cell_shares import account_rows, process_rows

    access = _admin_access(fleet)
    if access is None:
        return 1
    reports = asyncio.run(_read_reports(fleet, access))
    processes, accounts = process_rows(fleet, reports), account_rows(fleet, reports)
    if args.json:
        print_json({"processes": processes, "tenants": accounts})
    else:
        print_table(processes, ("cell", "state", "process", "epoch", "leases", "floor_percent", "problem"), empty="")
        print()
        columns = (
            "tenant",
            "cell",
            "share_percent",
            "token_share_percent",
            "expires_in_s",
            "arrived",
            "open",
            "assigned",
        )
        print_table(accounts, columns, empty="no gateway reports a tenant with limits")
    return 1 if any(row["problem"] for row in processes) else 0


async def _read_reports(
    fleet: "CellFleet", access: "AdminAccess"
) -> "Mapping[str, ProcessReport | ProcessUnavailable]":
    import aiohttp

    from headgate.control.cells.controller_service import SharesClient, read_reports

    async with aiohttp.ClientSession(trust_env=False) as session:
        client = SharesClient(session, access, timeout_s=_STATUS_TIMEOUT_S)
        return await read_reports(client, [url for cell in fleet.cells for url in cell.admin_urls])


def _run_controller(args: argparse.Namespace, fleet: "CellFleet", files: "tuple[Path, ...]") -> int:
    import asyncio
    import fcntl

    access = _admin_access(fleet)
    if access is None:
        return 1
    # The directory is locked, because the file is replaced when it changes.
    folder = os.open(args.file.resolve().parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print(f"headgate: another controller uses {args.file}; stop it first", file=sys.stderr)
        return 1
    try:
        asyncio.run(_control(FleetWatch(args.file, files), fleet, access))
    finally:
        os.close(folder)
    return 0


async def _control(watch: "FleetWatch", fleet: "CellFleet", access: "AdminAccess") -> None:
    import asyncio
    import signal
    import time

    import aiohttp

    from headgate.cli.serve import log_to_stderr
    from headgate.control.cells.controller_service import ControllerService, SharesClient
    from headgate.model.units import MILLISECOND, SECOND

    log_to_stderr("info", "text")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), trust_env=False) as session:
        client = SharesClient(session, access, timeout_s=fleet.interval_ns / SECOND)
        # A later controller needs a higher number.
        service = ControllerService(fleet, client, reload=watch.changed, epoch=time.time_ns() // MILLISECOND)
        running = asyncio.create_task(service.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        await asyncio.wait([running])
        if not running.cancelled():
            running.result()


class FleetWatch:
    """Rereads the list of cells when it, or a file that it refers to, has changed.

    An invalid file is reported and ignored.
    """

    def __init__(self, file: Path, files: "tuple[Path, ...]" = ()) -> None:
        """`files` are the files that the list refers to."""
        self._file = file
        self._stamps = self._read_stamps(files)

    def _read_stamps(self, files: "Iterable[Path]") -> "dict[Path, FileStamp]":
        from headgate.control.options import file_stamp

        return {each: file_stamp(each) for each in (self._file, *files)}

    def changed(self) -> "CellFleet | None":
        from headgate.config.cells.load import read_cells
        from headgate.config.problems import ConfigErrors

        files = tuple(self._stamps)[1:]
        if (stamps := self._read_stamps(files)) == self._stamps:
            return None
        self._stamps = stamps
        try:
            fleet, files = read_cells(self._file, os.environ)
        except ConfigErrors as errors:
            print(errors, file=sys.stderr)
            return None
        self._stamps = self._read_stamps(files)
        return fleet


def _move(args: argparse.Namespace, fleet: "CellFleet") -> int:
    import asyncio

    from headgate.config.cells.edit import set_pin
    from headgate.config.cells.load import load_cells, parse_cells
    from headgate.config.edit import EditNotPossible
    from headgate.config.environment import References
    from headgate.config.problems import ConfigErrors
    from headgate.control.cells.assignment import account_of, cells_of

    access = _admin_access(fleet)
    if access is None:
        return 1
    account = account_of(args.tenant)
    before, text = cells_of(account, fleet), args.file.read_text(encoding="utf-8")
    try:
        edited = set_pin(text, account, [name.strip() for name in args.to.split(",")])
        parse_cells(edited, args.file, References(os.environ, args.file.parent))
    except EditNotPossible:
        print(
            f"headgate: the layout of {args.file} cannot be edited automatically; change pins by hand", file=sys.stderr
        )
        return 1
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return 1
    draft = args.file.with_name(f".{args.file.name}.{os.getpid()}")
    draft.write_text(edited, encoding="utf-8")
    draft.replace(args.file)
    fleet = load_cells(args.file, os.environ)
    after = cells_of(account, fleet)
    print(f"{account}: moving from {', '.join(before)} to {', '.join(after)}", file=sys.stderr)
    if not asyncio.run(_wait_for_room(fleet, access, account, (*before, *after), args.wait)):
        print(
            f"headgate: the old cells still use shares that the new cells need after {args.wait} s; check that "
            "`headgate cells run` is running and that all old cells respond, and run this command again",
            file=sys.stderr,
        )
        return 1
    print(f"{account}: the new cells have room; update the load balancer with `headgate cells map`")
    return 0


async def _wait_for_room(
    fleet: "CellFleet", access: "AdminAccess", account: str, cells: "Sequence[str]", wait_s: int
) -> bool:
    """Waits until the shares of the old cells leave at least the floor for each new one."""
    import asyncio

    from headgate.cli.output.cell_shares import believed_share
    from headgate.control.cells.share_split import MILLION

    for _ in range(max(1, wait_s)):
        reports = await _read_reports(fleet, access)
        used = [believed_share(fleet, reports, cell, account) for cell in dict.fromkeys(cells)]
        known = [each for each in used if each is not None]
        if len(known) == len(used) and all(sum(kind) <= MILLION for kind in zip(*known, strict=True)):
            return True
        await asyncio.sleep(1)
    return False


def _admin_access(fleet: "CellFleet") -> "AdminAccess | None":
    """Returns the keys and certificates for the admin listeners. If a key is missing, prints why and returns None."""
    from headgate.control.cells.admin_access import AdminAccess, cells_without_key

    key = os.environ.get(ADMIN_KEY_VARIABLE) or None
    if key is None and (without := cells_without_key(fleet)):
        print(
            f"headgate: {ADMIN_KEY_VARIABLE} is not set; export an operator key with the permission shares, or set "
            f"admin_key for each cell (missing: {', '.join(without)})",
            file=sys.stderr,
        )
        return None
    return AdminAccess(fleet, key)
