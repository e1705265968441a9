"""What is a running gateway doing at this moment?"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.wire.escape import escaped

if TYPE_CHECKING:
    from headgate.cli.output.status import DatabaseState, EndpointState, EngineFound, GatewayStatus, LedgerState

ADMIN_URL = "HEADGATE_ADMIN_URL"
_USUAL_FILE = Path("headgate.yaml")
_TIMEOUT_S = 5.0
_UNKNOWN = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "file", nargs="?", default=Path("headgate.yaml"), type=Path, help="its configuration (headgate.yaml)"
    )
    which.add_argument("--url", help="its admin listener, such as http://127.0.0.1:9090, instead of the file's")
    parser.add_argument("--json", action="store_true", help="print what the gateway said as it is")


def run(args: argparse.Namespace) -> int:
    import asyncio

    from headgate.cli.output.status import NotAGateway

    url = admin_url(args.url, args.file)
    if url is None:
        return 1
    try:
        status, page, verdict = asyncio.run(_asked(url, verdict=not args.json))
    except NotAGateway as error:
        hint = f"start one with `headgate serve {args.file}`, or name its admin listener with --url"
        print(f"headgate: {error}; {hint}", file=sys.stderr)
        return 1
    print(page.decode().rstrip() if args.json else "\n".join(map(escaped, lines(status, url, verdict))))
    return 0


def admin_url(given: str | None, file: Path) -> str | None:
    """URL of the gateway's admin listener: `given`, else from the file. If no file was named either, the environment
    variable `HEADGATE_ADMIN_URL` comes first. Prints the problem and returns None if the file is invalid."""
    from headgate.cli.output.status import url_of
    from headgate.config.load import admin_listen
    from headgate.config.problems import ConfigErrors

    if given is None and file == _USUAL_FILE:
        given = os.environ.get(ADMIN_URL) or None
    if given is not None:
        return (given if "://" in given else f"http://{given}").rstrip("/").removesuffix("/status")
    try:
        host, port = admin_listen(file, os.environ)
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return None
    if port == 0:
        hint = "name the address that the gateway logged with --url"
        print(f"headgate: {file} leaves the port of admin_listen open; {hint}", file=sys.stderr)
        return None
    return url_of(host, port)


async def _asked(url: str, *, verdict: bool) -> "tuple[GatewayStatus, bytes, Sequence[str]]":
    """The status, its page, and the summary of the verdicts."""
    from headgate.cli.checkup import live
    from headgate.cli.output.status import NotAGateway, ask
    from headgate.engines.page import open_session

    async with open_session() as session:
        status, page = await ask(session, url, timeout_s=_TIMEOUT_S)
        if not verdict:
            return status, page, ()
        try:
            said, _ = await live.ask(session, url, timeout_s=_TIMEOUT_S)
        except NotAGateway as error:
            return status, page, (f"verdict: unknown, since {error}",)
        return status, page, tuple(live.summary(said))


# What people see


def lines(status: "GatewayStatus", url: str, verdict: Sequence[str] = ()) -> Iterator[str]:
    from headgate.cli.output.cell_status import cell_lines

    yield f"headgate {status.version} at {url}, configuration {status.config_hash}, up {_lasting(status.uptime_s)}"
    yield from verdict
    waiting = sum(status.queued.values())
    yield f"requests: {status.requests_open} open, {status.attempts_open} at engines, {waiting} waiting"
    for pool, count in status.held_for_start.items():
        yield f"held: {count} that came while pool {pool} had no endpoint"
    if status.draining:
        yield "draining: it takes nothing new and leaves when what is open has ended"
    for order in status.orders:
        yield f"order in force: {order.verb} {order.target}, for another {_lasting(order.left_s)}"
    if status.cell is not None:
        yield from cell_lines(status.cell)
    if status.database is not None:
        yield from _database(status.database)
    if status.ledger is not None:
        yield from _ledger(status.ledger)
    for problem in status.reload_problems:
        yield f"reload problem: {problem}"
    if status.reload_problems:
        yield "  the configuration above stays in force; mend the file and send SIGHUP again"
    yield ""
    yield from _table([("CLASS", "WAITING"), *((name, str(count)) for name, count in status.queued.items())])
    yield ""
    yield from _endpoints(status)


def _database(database: "DatabaseState") -> Iterator[str]:
    yield f"database: {database.tenants} tenants, {database.keys} keys, {database.orders} orders in force"
    if database.problem is not None:
        yield f"  it is away: {database.problem}; known keys go on working, unknown ones are told to try again"
    for name in database.shadowed_by_file:
        yield f"  tenant {name} is in the file too, which counts; rename one of the two"


def _ledger(ledger: "LedgerState") -> Iterator[str]:
    waiting = f", the oldest for {ledger.oldest_s:.0f} s" if ledger.rows_waiting else ""
    yield f"ledger: {ledger.rows_written:,} rows written, {ledger.rows_waiting:,} waiting{waiting}"
    if ledger.problem is not None:
        yield f"  the database is away: {ledger.problem}; rows wait in the spool and are written when it is back"
    if ledger.spool_problem is not None:
        yield f"  {ledger.spool_problem}"
    if ledger.attempts_unrecorded:
        yield f"  {ledger.attempts_unrecorded:,} attempts were sent without a record on disk"
    if ledger.rows_lost or ledger.rows_refused:
        yield f"  {ledger.rows_lost + ledger.rows_refused:,} rows are lost for good; the log says why"


def _endpoints(status: "GatewayStatus") -> Iterator[str]:
    engines = {engine.endpoint_id: engine for engine in status.engines}
    head = ("ENDPOINT", "STATE", "IN FLIGHT", "ENGINE", "RUNS", "QUEUES", "KV", "TOLD")
    drained = {order.target for order in status.orders if order.verb == "drain"}
    rows = (_row(each, engines.get(each.id), drained=each.id in drained) for each in status.endpoints)
    yield from _table([head, *rows])
    for engine in status.engines:
        for problem in engine.problems:
            yield f"{engine.endpoint_id}: {problem}"


def _row(endpoint: "EndpointState", engine: "EngineFound | None", *, drained: bool) -> tuple[str, ...]:
    state = endpoint.state + ", suspected" * endpoint.suspected + ", leaving" * endpoint.leaving + ", drained" * drained
    row = (endpoint.id, state, f"{endpoint.in_flight} of {endpoint.in_flight_max}")
    if engine is None:
        return (*row, *[_UNKNOWN] * 5)
    load, age_s = engine.telemetry, engine.telemetry_age_s
    return (
        *row,
        engine.dialect if engine.version is None else f"{engine.dialect} {engine.version}",
        _count(load.running),
        _count(load.waiting),
        _UNKNOWN if load.kv_used_fraction is None else f"{load.kv_used_fraction:.0%}",
        _UNKNOWN if age_s is None else f"{_lasting(age_s)} ago",
    )


def _count(value: int | None) -> str:
    return _UNKNOWN if value is None else str(value)


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _lasting(length_s: float) -> str:
    """The two units that matter: `3 d 4 h`, `2 min 5 s`, `7 s`."""
    whole = int(length_s)
    for large, small, in_large, in_small in (("d", "h", 86_400, 3_600), ("h", "min", 3_600, 60), ("min", "s", 60, 1)):
        if whole >= in_large:
            return f"{whole // in_large} {large} {whole % in_large // in_small} {small}"
    return f"{whole} s"
