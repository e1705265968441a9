"""Check the database, the spool directory and the prices."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from headgate.cli.checkup.finding import CheckFinding, note, ok, problem
from headgate.config.settings import Settings
from headgate.ledger.options import LedgerOptions

_CONNECT_S_MAX = 2.0
_SLOW_S = 0.05
_FREE_SPACE_FACTOR = 2
"""Minimum free space on the spool's disk, as a multiple of the spool's maximum size."""


async def check_database(settings: Settings) -> list[CheckFinding]:
    if settings.database is None:
        return []
    try:
        findings = await _connection_findings(
            settings.database.url, f"the database at {settings.database.url_redacted}"
        )
    except ImportError:
        return []  # `missing_extras` reports the missing library.
    if settings.ledger is not None:
        findings += [_spool(settings.ledger), *_prices(settings)]
    return findings


async def _connection_findings(url: str, about: str) -> list[CheckFinding]:
    from headgate.ledger.database import DATABASE_ERRORS, Database, close
    from headgate.ledger.schema_migration import migrations, schema_state

    database = Database(url, connect_s_max=_CONNECT_S_MAX, query_s_max=_CONNECT_S_MAX)
    try:
        link = await database.connect()
        try:
            began_s = time.monotonic()
            schema = await schema_state(link, migrations())
            took_s = time.monotonic() - began_s
        finally:
            await close(link)
    except DATABASE_ERRORS as error:
        message, _, then = database.describe(error).partition("; ")
        return [problem(about, message, next_step=then or "start it, or correct database.url; known keys keep working")]
    if schema.problem is not None:
        message, _, then = schema.problem.partition("; ")
        return [problem(about, message, next_step=then)]
    if schema.hint is not None:
        message, _, then = schema.hint.partition("; ")
        findings = [note(about, message, next_step=then)]
    else:
        findings = [ok(about, f"schema is up to date; response time {1000 * took_s:.2g} ms")]
    if took_s > _SLOW_S:
        then = "move it closer to the gateways; key changes and reports wait for it, requests do not"
        findings.append(note(about, f"response time is {1000 * took_s:.0f} ms", next_step=then))
    return findings


def _spool(ledger: LedgerOptions) -> CheckFinding:
    about, folder = "ledger.spool_directory", Path(ledger.spool_directory)
    # Missing directories are created at startup, under the nearest existing one.
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    if not nearest.is_dir():
        return problem(about, f"{nearest} is not a directory", next_step="set ledger.spool_directory to another path")
    if not os.access(nearest, os.W_OK | os.X_OK):
        then = "grant write access to the user that runs the gateway, or choose another directory"
        return problem(about, f"this user cannot write to {nearest}", next_step=then)
    disk = os.statvfs(nearest)
    free_bytes = disk.f_bavail * disk.f_frsize
    if free_bytes < _FREE_SPACE_FACTOR * ledger.spool_bytes_max:
        message = f"{nearest} has {free_bytes // 2**20:,} MiB free; each process may need"
        then = "free disk space, or lower ledger.spool_bytes_max"
        return note(about, f"{message} {ledger.spool_bytes_max // 2**20:,} MiB", next_step=then)
    return ok(about, f"{nearest} is writable and has {free_bytes // 2**20:,} MiB free")


def _prices(settings: Settings) -> Iterator[CheckFinding]:
    now_ns = time.time_ns()
    for pool in settings.policy.pools:
        about = f"prices of {pool.name}"
        if not pool.prices:
            then = f"set pools.{pool.name}.prices; without prices its cost is 0"
            yield note(about, "no price is set", next_step=then)
        elif pool.prices[0].since > now_ns:
            yield note(about, "no price is valid today", next_step="add a price without `from`")
        else:
            yield ok(about, f"{len(pool.prices)} set, one of them valid today")
