"""Checks and migrates the database schema.

Each file in `migrations/` is one migration. Migrations are applied once, in the order of their numbers, each in its own
transaction. A lock serializes concurrent runs. The hash of each applied file is stored, so that a later change to the
file is detected.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from headgate.ledger.connection import DatabaseConnection

_FILE: Final = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_LOCK: Final = 0x68656164
"""Advisory lock ID for migrations. The value is arbitrary but must be the same in all processes."""
_MIGRATION_S_MAX: Final = 600.0
_CREATE_MIGRATIONS: Final = """
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
    """All migrations in this version, in order."""
    files = resources.files("headgate.ledger").joinpath("migrations").iterdir()
    named = [(name, file) for file in files if (name := _FILE.fullmatch(file.name)) is not None]
    found = [Migration(int(name[1]), name[2], file.read_text(encoding="utf-8")) for name, file in named]
    found.sort(key=lambda each: each.number)
    numbers = [each.number for each in found]
    assert numbers == list(range(1, len(found) + 1)), (
        f"migration numbers must be consecutive and unique, found {numbers}"
    )
    return tuple(found)


async def schema_mismatch(link: DatabaseConnection, known: Sequence[Migration]) -> str | None:
    """Why this version cannot use the database, with the next step; None if it can."""
    try:
        rows = await link.fetch("select number, sha256 from headgate.migrations order by number")
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return f"the database has no Headgate schema; {NEXT_STEP}"
    applied: dict[int, str] = {row["number"]: row["sha256"] for row in rows}
    if missing := [each.number for each in known if each.number not in applied]:
        return f"the database lacks {len(missing)} of {len(known)} migrations, first {missing[0]:04}; {NEXT_STEP}"
    if len(applied) > len(known):
        newest = max(applied)
        return (
            f"the database has migration {newest:04} from a newer version, but this version knows only migrations up "
            f"to {len(known):04}; upgrade Headgate"
        )
    for each in known:
        if applied[each.number] != each.sha256:
            what = f"migration {each.number:04} was applied from a different file than this version's"
            return f"{what}; install the version that applied it, or a later one"
    return None


async def migrate(link: DatabaseConnection, known: Sequence[Migration], on_step: Callable[[Migration], None]) -> int:
    """Applies missing migrations and returns how many were applied."""
    # A migration may rewrite a large table.
    await link.execute("set statement_timeout = 0")
    await link.execute("select pg_advisory_lock($1)", _LOCK, timeout=_MIGRATION_S_MAX)
    try:
        await link.execute(_CREATE_MIGRATIONS)
        rows = await link.fetch("select number from headgate.migrations")
        applied: set[int] = {row["number"] for row in rows}
        steps = [each for each in known if each.number not in applied]
        for each in steps:
            on_step(each)
            async with link.transaction():
                await link.execute(each.sql, timeout=_MIGRATION_S_MAX)
                noted = "insert into headgate.migrations (number, name, sha256) values ($1, $2, $3)"
                await link.execute(noted, each.number, each.name, each.sha256)
        return len(steps)
    finally:
        await link.execute("select pg_advisory_unlock($1)", _LOCK)
