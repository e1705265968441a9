"""Show the state of a running gateway."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.input.argument_types import CONFIG_FILE, add_gateway
from headgate.wire.escape import escaped

if TYPE_CHECKING:
    import ssl

    from headgate.cli.output.status import DatabaseState, EndpointStatus, EngineStatus, LedgerState, StatusPage

ADMIN_URL_VARIABLE = "HEADGATE_ADMIN_URL"
_TIMEOUT_S = 5.0
_UNKNOWN = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_gateway(parser)


def run(args: argparse.Namespace) -> int:
    import asyncio

    from headgate.cli.input.admin_tls import admin_tls
    from headgate.cli.output.status import GatewayNotFound

    url = admin_url(args.url, args.config)
    if url is None:
        return 1
    try:
        status, page, verdict = asyncio.run(_fetch(url, admin_tls(url, args.config), verdict=not args.json))
    except GatewayNotFound as error:
        print(f"headgate: {error}; {start_hint(args.config, str(error))}", file=sys.stderr)
        return 1
    print(page.decode().rstrip() if args.json else "\n".join(map(escaped, lines(status, url, verdict))))
    return 0


def url_in_environment(file: Path) -> str | None:
    """`HEADGATE_ADMIN_URL`, if it takes precedence over this configuration file."""
    return (os.environ.get(ADMIN_URL_VARIABLE) or None) if file == CONFIG_FILE else None


def admin_url(given: str | None, file: Path) -> str | None:
    """URL of the admin listener: `given` or, failing that, the URL from the file. With the default file, the
    environment variable `HEADGATE_ADMIN_URL` takes precedence over the file. If the file is invalid, prints the problem
    and returns None.
    """
    from headgate.cli.output.status import base_url
    from headgate.config.load import admin_listen, admin_tls
    from headgate.config.problems import ConfigErrors

    given = given or url_in_environment(file)
    if given is not None:
        return (given if "://" in given else f"http://{given}").rstrip("/").removesuffix("/status")
    try:
        host, port = admin_listen(file, os.environ)
        https = admin_tls(file, os.environ) is not None
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return None
    if port == 0:
        hint = "set --url to the address in the gateway's log"
        print(f"headgate: {file} sets no fixed port in admin_listen; {hint}", file=sys.stderr)
        return None
    return base_url(host, port, https=https)


def start_hint(file: Path, why: str = "") -> str:
    """The next step if no gateway is responding. `why` is the reason."""
    from headgate.cli.input.admin_tls import trust_hint

    if hint := trust_hint(why):
        return hint
    option = "" if file == CONFIG_FILE else f" --config {file}"
    return f"start one with `headgate serve{option}`, or specify its admin listener with --url"


async def _fetch(url: str, tls: "ssl.SSLContext | None", *, verdict: bool) -> "tuple[StatusPage, bytes, Sequence[str]]":
    """The status, the response that it was read from, and the verdict summary."""
    from headgate.cli.checkup import live
    from headgate.cli.output.status import GatewayNotFound, fetch_status
    from headgate.engines.page import open_session

    async with open_session(tls=tls) as session:
        status, page = await fetch_status(session, url, timeout_s=_TIMEOUT_S)
        if not verdict:
            return status, page, ()
        try:
            said, _ = await live.fetch_verdicts(session, url, timeout_s=_TIMEOUT_S)
        except GatewayNotFound as error:
            return status, page, (f"verdict: unknown, because {error}",)
        return status, page, tuple(live.summary(said, url))


# Text output


def lines(status: "StatusPage", url: str, verdict: Sequence[str] = ()) -> Iterator[str]:
    from headgate.cli.output.cell_status import cell_lines

    uptime = _duration_text(status.uptime_s)
    build = f" ({status.build})" if status.build else ""
    since = f" since {status.config_since}" if status.config_since else ""
    yield f"headgate {status.version}{build} at {url}, configuration {status.config_hash}{since}, up {uptime}"
    yield from verdict
    waiting = sum(status.queued.values())
    yield f"requests: {status.requests_open} open, {status.attempts_open} on engines, {waiting} waiting"
    for pool, count in status.held_for_start.items():
        yield f"held: {count} requests that arrived while pool {pool} had no endpoint"
    if status.draining:
        yield "draining: not accepting new requests; stops once the open requests have ended"
    for order in status.overrides:
        yield f"override active: {order.verb} {order.target}, {_duration_text(order.remaining_s)} left"
    if status.cell is not None:
        yield from cell_lines(status.cell)
    if status.database is not None:
        yield from _database(status.database)
    if status.ledger is not None:
        yield from _ledger(status.ledger)
    yield from _issuers(status)
    yield from _configuration(status)
    yield from _tls(status)
    yield ""
    yield from _table([("CLASS", "WAITING"), *((name, str(count)) for name, count in status.queued.items())])
    yield ""
    yield from _endpoints(status)


def _configuration(status: "StatusPage") -> Iterator[str]:
    for problem in status.reload_problems:
        yield f"reload problem: {problem}"
    if status.reload_problems:
        then = "" if status.reload == "watch" else " and send SIGHUP again"
        yield f"  the configuration above stays active; fix the file{then}"
    if status.restart_needed:
        yield f"restart needed: changes to {', '.join(status.restart_needed)} take effect only after a restart"


def _tls(status: "StatusPage") -> Iterator[str]:
    for name, tls in status.tls.items():
        yield f"{name}: TLS, certificate expires on {tls.expires_at}"
        if tls.problem is not None:
            yield f"  the changed files are not in use: {tls.problem}"
    for problem in status.engine_tls_problems:
        yield f"TLS problem: {problem}; connections to engines use the previous files"


def _database(database: "DatabaseState") -> Iterator[str]:
    yield f"database: {database.tenants} tenants, {database.keys} keys, {database.overrides} active overrides"
    if database.problem is not None:
        yield f"  unreachable: {database.problem}; known keys keep working, unknown keys get a 503 with Retry-After"
    for name in database.shadowed_by_file:
        yield f"  tenant {name} is also in the configuration file, which has precedence; rename one of the two"


def _ledger(ledger: "LedgerState") -> Iterator[str]:
    waiting = f" (oldest {ledger.oldest_s:.0f} s)" if ledger.rows_waiting else ""
    yield f"ledger: {ledger.rows_written:,} rows written, {ledger.rows_waiting:,} waiting{waiting}"
    if ledger.problem is not None:
        yield f"  database unreachable: {ledger.problem}; rows stay in the spool until it is reachable"
    if ledger.spool_problem is not None:
        yield f"  {ledger.spool_problem}"
    if ledger.attempts_unrecorded:
        yield f"  {ledger.attempts_unrecorded:,} attempts were sent without a record on disk"
    if ledger.rows_lost or ledger.rows_rejected:
        yield f"  {ledger.rows_lost + ledger.rows_rejected:,} rows are lost; see the gateway's log"


def _issuers(status: "StatusPage") -> Iterator[str]:
    for name, issuer in status.issuers.items():
        read = "never read" if issuer.age_s is None else f"read {_duration_text(issuer.age_s)} ago"
        yield f"issuer {name}: {issuer.keys} keys, {read}"
        if issuer.problem is not None:
            then = "tokens get a 503 with Retry-After" if issuer.keys == 0 else "the known keys stay in use"
            yield f"  {issuer.issuer}: {issuer.problem}; {then}"


def _endpoints(status: "StatusPage") -> Iterator[str]:
    engines = {engine.endpoint_id: engine for engine in status.engines}
    head = ("ENDPOINT", "STATE", "IN FLIGHT", "ENGINE", "RUNNING", "WAITING", "KV", "METRICS AGE")
    drained = {order.target for order in status.overrides if order.verb == "drain"}
    rows = (_row(each, engines.get(each.id), drained=each.id in drained) for each in status.endpoints)
    yield from _table([head, *rows])
    for engine in status.engines:
        for problem in engine.problems:
            yield f"{engine.endpoint_id}: {problem}"
    for drift in status.speed_drift:
        took = f"decoding takes {drift.decode_percent} % and prefill {drift.prefill_percent} % of the configured time"
        yield f"pool {drift.pool}: {took}; measure the engines with `headgate calibrate` and correct the pool's speed"


def _row(endpoint: "EndpointStatus", engine: "EngineStatus | None", *, drained: bool) -> tuple[str, ...]:
    state = endpoint.state + ", suspected" * endpoint.suspected + ", rate limited" * endpoint.quota_exhausted
    state += ", leaving" * endpoint.leaving + ", drained" * drained
    if endpoint.engine:
        state += ", shared engine"
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
        _UNKNOWN if age_s is None else _duration_text(age_s),
    )


def _count(value: int | None) -> str:
    return _UNKNOWN if value is None else str(value)


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _duration_text(length_s: float) -> str:
    """Duration in its two largest units: `3 d 4 h`, `2 min 5 s`, `7 s`."""
    whole = int(length_s)
    for large, small, in_large, in_small in (("d", "h", 86_400, 3_600), ("h", "min", 3_600, 60), ("min", "s", 60, 1)):
        if whole >= in_large:
            return f"{whole // in_large} {large} {whole % in_large // in_small} {small}"
    return f"{whole} s"
