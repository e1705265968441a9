"""Is the database of the shape that this version works with, and how does it become so?

Each file of `migrations/` is one step, applied once, in the order of its number, in a transaction of its own. Two who
migrate at the same time wait for each other. What was applied is noted with its hash, so that a file that was changed
afterwards is found out.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from headgate.ledger.link import Link

_FILE: Final = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_LOCK: Final = 0x68656164
"""Any number, the same in all who migrate."""
_STEP_S_MAX: Final = 600.0
_NOTES: Final = """
create schema if not exists headgate;
create table if not exists headgate.migrations (
    number integer primary key,
    name text not null,
    sha256 text not null,
    applied_at timestamptz not null default now()
)"""
NEXT_STEP: Final = "run `headgate ledger migrate` with the same configuration"


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> tuple[Migration, ...]:
    """All that this version knows, in their order."""
    files = resources.files("headgate.ledger").joinpath("migrations").iterdir()
    named = [(name, file) for file in files if (name := _FILE.fullmatch(file.name)) is not None]
    found = [Migration(int(name[1]), name[2], file.read_text(encoding="utf-8")) for name, file in named]
    found.sort(key=lambda each: each.number)
    numbers = [each.number for each in found]
    assert numbers == list(range(1, len(found) + 1)), f"migrations are numbered {numbers}, with a gap or one twice"
    return tuple(found)


async def mismatch(link: Link, known: Sequence[Migration]) -> str | None:
    """Why this version cannot work with the database as it is, with the next step; None where it can."""
    try:
        rows = await link.fetch("select number, sha256 from headgate.migrations order by number")
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return f"the database has not been prepared; {NEXT_STEP}"
    applied: dict[int, str] = {row["number"]: row["sha256"] for row in rows}
    if missing := [each.number for each in known if each.number not in applied]:
        return f"the database lacks migration {missing[0]:04} and {len(missing) - 1} more; {NEXT_STEP}"
    if len(applied) > len(known):
        newest = max(applied)
        return (
            f"the database was migrated to {newest:04} by a newer version, and this one knows {len(known):04}; upgrade"
        )
    for each in known:
        if applied[each.number] != each.sha256:
            what = f"migration {each.number:04} was applied from another file than this version has"
            return f"{what}; install the version that did, or one after it"
    return None


async def migrate(link: Link, known: Sequence[Migration], on_step: Callable[[Migration], None]) -> int:
    """Applies what is missing; how many steps those were."""
    # A step may rewrite a large table.
    await link.execute("set statement_timeout = 0")
    await link.execute("select pg_advisory_lock($1)", _LOCK, timeout=_STEP_S_MAX)
    try:
        await link.execute(_NOTES)
        rows = await link.fetch("select number from headgate.migrations")
        applied: set[int] = {row["number"] for row in rows}
        steps = [each for each in known if each.number not in applied]
        for each in steps:
            on_step(each)
            async with link.transaction():
                await link.execute(each.sql, timeout=_STEP_S_MAX)
                noted = "insert into headgate.migrations (number, name, sha256) values ($1, $2, $3)"
                await link.execute(noted, each.number, each.name, each.sha256)
        return len(steps)
    finally:
        await link.execute("select pg_advisory_unlock($1)", _LOCK)
