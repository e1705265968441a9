"""Can the database, the folder beside it and the prices carry the accounts that the configuration asks for?"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from headgate.cli.checkup.finding import Finding, note, ok, problem
from headgate.config.settings import Settings
from headgate.ledger.options import LedgerOptions

_CONNECT_S_MAX = 2.0
_SLOW_S = 0.05
_SPARE = 2
"""So many times what may wait should be free."""


async def look_at_database(settings: Settings) -> list[Finding]:
    if settings.database is None:
        return []
    try:
        findings = await _asked(settings.database.url, f"the database at {settings.database.url_shown}")
    except ImportError:
        return []  # The missing library is reported by `missing_extras`.
    if settings.ledger is not None:
        findings += [_spool(settings.ledger), *_prices(settings)]
    return findings


async def _asked(url: str, about: str) -> list[Finding]:
    from headgate.ledger.database import FAILURES, Database, close
    from headgate.ledger.migrate import migrations, mismatch

    database = Database(url, connect_s_max=_CONNECT_S_MAX, query_s_max=_CONNECT_S_MAX)
    try:
        link = await database.connect()
        try:
            began_s = time.monotonic()
            wrong = await mismatch(link, migrations())
            took_s = time.monotonic() - began_s
        finally:
            await close(link)
    except FAILURES as error:
        message, _, then = database.problem(error).partition("; ")
        return [problem(about, message, then=then or "start it, or correct database.url; known keys go on working")]
    if wrong is not None:
        message, _, then = wrong.partition("; ")
        return [problem(about, message, then=then)]
    findings = [ok(about, f"is prepared for this version and answers in {1000 * took_s:.2g} ms")]
    if took_s > _SLOW_S:
        then = "bring it nearer to the gateways; requests do not wait for it, changes of keys and reports do"
        findings.append(note(about, f"needs {1000 * took_s:.0f} ms to answer", then=then))
    return findings


def _spool(ledger: LedgerOptions) -> Finding:
    about, folder = "ledger.spool", Path(ledger.spool)
    # What is not there is made at the start, below the nearest folder that is.
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    if not nearest.is_dir():
        return problem(about, f"{nearest} is not a folder", then="name another one in ledger.spool")
    if not os.access(nearest, os.W_OK | os.X_OK):
        then = "give it to the user that runs the gateway, or name another one"
        return problem(about, f"this user cannot write to {nearest}", then=then)
    disk = os.statvfs(nearest)
    free_bytes = disk.f_bavail * disk.f_frsize
    if free_bytes < _SPARE * ledger.spool_bytes_max:
        message = f"{free_bytes // 2**20:,} MiB are free at {nearest}, and each process may need"
        then = "free some, or lower ledger.spool_max"
        return note(about, f"{message} {ledger.spool_bytes_max // 2**20:,} MiB", then=then)
    return ok(about, f"{nearest} can be written to, with {free_bytes // 2**20:,} MiB free")


def _prices(settings: Settings) -> Iterator[Finding]:
    now_ns = time.time_ns()
    for pool in settings.policy.pools:
        about = f"prices of {pool.name}"
        if not pool.prices:
            then = f"write prices in pools.{pool.name}; what it does is counted as costing nothing"
            yield note(about, "nobody has said what it costs", then=then)
        elif pool.prices[0].since > now_ns:
            yield note(about, "none holds yet today", then="write one that holds since ever, without `from`")
        else:
            yield ok(about, f"{len(pool.prices)} known, one of which holds today")
