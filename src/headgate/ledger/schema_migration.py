"""Checks and migrates the database schema, so that two versions of Headgate can use one database.

Each file in `migrations/` is one migration. Migrations are applied once, in the order of their numbers, each in its own
transaction. A lock serializes concurrent runs. The hash of each applied file is stored, so that a later change to the
file is detected.

A version is compatible with schemas in both directions (docs/project/decisions/0014-expand-migrate-contract.md):

- Newer schema: the first line of a migration states the oldest schema whose gateways may still use the database. The
  database stores it, so that a gateway can accept migrations that it does not know.
- Older schema: a gateway accepts any schema from `OLDEST_USABLE` onward, and works without the missing objects.

Version 0.1 rejects every number in `headgate.migrations` that it does not know. Migrations that are compatible with it
are therefore recorded only in `headgate.schema_versions`, which it does not read.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from headgate.ledger.connection import DatabaseConnection

OLDEST_USABLE: Final = 2
"""Oldest schema that this version can use. Raise it in the release after the one that added a migration."""

_FILE: Final = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_OLDEST: Final = re.compile(r"-- oldest schema: (\d+)\n")
_LOCK: Final = 0x68656164
"""Advisory lock ID for migrations. The value is arbitrary but must be the same in all processes."""
_MIGRATION_S_MAX: Final = 600.0
_FIRST_COMPATIBLE: Final = 3
"""First schema with compatible migrations. Version 0.1 was released with the schema before it."""
_CREATE_MIGRATIONS: Final = """
create schema if not exists headgate;
create table if not exists headgate.migrations (
    number integer primary key,
    name text not null,
    sha256 text not null,
    applied_at timestamptz not null default now()
);
create table if not exists headgate.schema_versions (
    number integer primary key,
    name text not null,
    sha256 text not null,
    oldest_schema integer not null,
    applied_at timestamptz not null default now()
)"""
_SELECT_MIGRATIONS: Final = "select number, sha256, number as oldest_schema from headgate.migrations"
_SELECT_VERSIONS: Final = "select number, sha256, oldest_schema from headgate.schema_versions"
_INSERT_MIGRATION: Final = "insert into headgate.migrations (number, name, sha256) values ($1, $2, $3)"
_INSERT_VERSION: Final = (
    "insert into headgate.schema_versions (number, name, sha256, oldest_schema) values ($1, $2, $3, $4)"
)
NEXT_STEP: Final = "run `headgate ledger migrate` with the same configuration"


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def oldest_schema(self) -> int:
        """Oldest schema whose gateways can use the database after this migration."""
        stated = _OLDEST.match(self.sql)
        return self.number if stated is None else int(stated[1])


@dataclass(frozen=True, slots=True)
class SchemaState:
    """Schema of a database, compared with the migrations of this version."""

    version: int
    """Number of the newest applied migration; 0 if there is none."""
    pending: tuple[Migration, ...]
    """Migrations of this version that have not been applied."""
    changed: tuple[Migration, ...]
    """Applied migrations whose stored hash differs from this version's file."""
    problem: str | None
    """Why this version cannot use the database, with the next step; None if it can."""

    @property
    def hint(self) -> str | None:
        """Difference that does not stop this version from using the database; None if there is none."""
        if self.problem is not None or not self.pending:
            return None
        numbers = ", ".join(f"{each.number:04}" for each in self.pending)
        return f"the database lacks the optional migrations {numbers}; {NEXT_STEP}"


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


async def schema_state(
    link: DatabaseConnection, known: Sequence[Migration], *, oldest_usable: int = OLDEST_USABLE
) -> SchemaState:
    """Compares the database with the known migrations. Changes nothing."""
    applied = await _applied(link)
    if not applied:
        return SchemaState(0, tuple(known), (), f"the database has no Headgate schema; {NEXT_STEP}")
    pending = tuple(each for each in known if each.number not in applied)
    changed = tuple(each for each in known if each.number in applied and applied[each.number][0] != each.sha256)
    problem = (
        _gap(max(applied), known, pending, oldest_usable)
        or (_changed_text(changed[0]) if changed else None)
        or _breaking_text(applied, known)
    )
    return SchemaState(max(applied), pending, changed, problem)


async def schema_mismatch(link: DatabaseConnection, known: Sequence[Migration]) -> str | None:
    """Why this version cannot use the database, with the next step; None if it can."""
    return (await schema_state(link, known)).problem


async def _applied(link: DatabaseConnection) -> dict[int, tuple[str, int]]:
    """Hash and oldest compatible schema of each applied migration."""
    try:
        rows = await link.fetch(_SELECT_MIGRATIONS)
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return {}
    if await link.fetchval("select to_regclass('headgate.schema_versions') is not null"):
        # These rows state the oldest schema, so they take precedence over a row with the same number.
        rows += await link.fetch(_SELECT_VERSIONS)
    return {row["number"]: (row["sha256"], row["oldest_schema"]) for row in rows}


def _gap(newest: int, known: Sequence[Migration], pending: Sequence[Migration], oldest_usable: int) -> str | None:
    if pending and (pending[0].number <= oldest_usable or pending[0].number < newest):
        return (
            f"the database lacks {len(pending)} of {len(known)} migrations, first {pending[0].number:04}; {NEXT_STEP}"
        )
    return None


def _changed_text(step: Migration) -> str:
    what = f"migration {step.number:04} was applied from a different file than this version's"
    return f"{what}; install the version that applied it, or a later one"


def _breaking_text(applied: dict[int, tuple[str, int]], known: Sequence[Migration]) -> str | None:
    unknown = {number: oldest for number, (_, oldest) in applied.items() if number > len(known)}
    breaking = [number for number, oldest in unknown.items() if oldest > len(known)]
    if breaking:
        return (
            f"the database has migration {max(breaking):04} from a newer version, which needs schema "
            f"{unknown[max(breaking)]:04} or newer, but this version knows only migrations up to {len(known):04}; "
            "upgrade Headgate"
        )
    return None


async def migrate(link: DatabaseConnection, known: Sequence[Migration], on_step: Callable[[Migration], None]) -> int:
    """Applies missing migrations and returns how many were applied."""
    # A migration may rewrite a large table.
    await link.execute("set statement_timeout = 0")
    await link.execute("select pg_advisory_lock($1)", _LOCK, timeout=_MIGRATION_S_MAX)
    try:
        await link.execute(_CREATE_MIGRATIONS)
        applied = await _applied(link)
        steps = [each for each in known if each.number not in applied]
        for each in steps:
            on_step(each)
            async with link.transaction():
                await link.execute(each.sql, timeout=_MIGRATION_S_MAX)
                await _record(link, each)
        return len(steps)
    finally:
        await link.execute("select pg_advisory_unlock($1)", _LOCK)


async def _record(link: DatabaseConnection, step: Migration) -> None:
    if step.number >= _FIRST_COMPATIBLE:
        await link.execute(_INSERT_VERSION, step.number, step.name, step.sha256, step.oldest_schema)
    if step.oldest_schema >= _FIRST_COMPATIBLE or step.number < _FIRST_COMPATIBLE:
        # Stops gateways of version 0.1.
        await link.execute(_INSERT_MIGRATION, step.number, step.name, step.sha256)
