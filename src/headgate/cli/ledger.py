"""Prepare the database for tenants, keys and usage, and export usage."""

import argparse
import os
import sys
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.input.argument_types import add_actions, add_config

if TYPE_CHECKING:
    from headgate.ledger.schema_migration import SchemaState


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_action = add_actions(parser)
    migrate = add_action("migrate", "Create or upgrade the database schema for this version.")
    add_config(migrate)
    migrate.add_argument(
        "--check",
        action="store_true",
        help="Change nothing. Exit 0 if the schema is up to date, 1 if migrations are pending, 2 on an error, 3 if the "
        "database applied a migration from another file than this version's.",
    )
    export = add_action("export", "Export usage rows to a file with FOCUS columns, for a warehouse.")
    add_config(export)
    export.add_argument("--format", choices=("parquet",), default="parquet", help="File format (default parquet).")
    export.add_argument(
        "--since", type=_day, metavar="DAY", help="First day, in UTC, such as 2026-11-01 (default: start of the month)."
    )
    export.add_argument("--until", type=_day, metavar="DAY", help="Day after the last one (default: tomorrow).")
    export.add_argument("--out", type=Path, required=True, metavar="FILE", help="File to write. It must not exist.")


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text}" is not a day; use 2026-11-15') from None


def run(args: argparse.Namespace) -> int:
    from headgate.config.load import database_url
    from headgate.config.problems import ConfigErrors

    exports = args.action == "export"
    failed = 2 if exports or args.check else 1
    try:
        url = database_url(args.config, os.environ)
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return failed
    if url is None:
        return _problem(f"{args.config} has no database; set database.url", failed)
    try:
        if exports:
            return _export(url, args)
        return _check(url) if args.check else _migrate(url)
    except ImportError as error:
        return _problem(f"{error}; install headgate[ledger]", failed)
    except OSError as error:
        what = "the export failed" if exports else "the check failed" if args.check else "the migration failed"
        then = "" if exports or args.check else "; each step is atomic, so it is safe to try again"
        return _problem(f"{what}: {error.strerror}{then}", failed)


def _export(url: str, args: argparse.Namespace) -> int:
    import asyncio

    from headgate.ledger.database import DATABASE_ERRORS, describe_error
    from headgate.ledger.usage_export import ExportImpossible, export_usage

    today = datetime.now(UTC).date()
    since, until = args.since or today.replace(day=1), args.until or today + timedelta(days=1)
    if since >= until:
        return _problem(f"--since {since} is not before --until {until}", 2)
    try:
        done = asyncio.run(export_usage(url, _midnight(since), _midnight(until), args.out))
    except ExportImpossible as error:
        return _problem(str(error), 2)
    except OSError as error:
        return _problem(f"the export failed: {error.strerror or describe_error(error, url)}", 2)
    except DATABASE_ERRORS as error:
        return _problem(f"the export failed: {describe_error(error, url)}", 2)
    groups = f"{done.row_groups} row group{'' if done.row_groups == 1 else 's'}"
    print(f"{args.out}: {done.rows} rows in {groups}, {since} to {until} (exclusive)")
    print(f"BilledCost {done.billed:f} USD, EffectiveCost {done.cost:f} USD")
    return 0


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _migrate(url: str) -> int:
    import asyncio

    from headgate.control.directory_sync import migrate_database

    steps = asyncio.run(migrate_database(url, lambda step: _print_stderr(f"applying {step.number:04} {step.name}")))
    print(f"{steps} steps applied" if steps else "the database schema is up to date")
    return 0


def _check(url: str) -> int:
    import asyncio

    from headgate.control.directory_sync import check_migrations

    schema = asyncio.run(check_migrations(url))
    if schema.changed:
        return _report_changed(schema)
    if schema.problem is not None and not schema.pending:
        return _problem(schema.problem, 2)
    if not schema.pending:
        print(f"the database schema is up to date ({schema.version:04})")
        return 0
    for step in schema.pending:
        print(f"pending {step.number:04} {step.name}: {_effect(step.oldest_schema, schema.version)}")
    if schema.problem is not None:
        print(schema.problem)
    else:
        print(f"gateways of this version can use schema {schema.version:04} until you run `headgate ledger migrate`")
    return 1


def _report_changed(schema: "SchemaState") -> int:
    """Running pending migrations would not help, so they are not listed."""
    for step in schema.changed:
        print(f"changed {step.number:04} {step.name}: applied from another file than this version's")
    then = "install the version that applied it, or a later one"
    waiting = f"; do not run the {len(schema.pending)} pending migrations with this version" if schema.pending else ""
    return _problem(f"the database does not match this version; {then}{waiting}", 3)


def _effect(oldest: int, version: int) -> str:
    """What the migration means for gateways that are running now."""
    if version == 0:
        return "creates tables"
    if oldest <= version:
        return f"running gateways of schema {oldest:04} or newer keep working"
    return f"stops gateways older than schema {oldest:04}; replace them before you run it"


def _print_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def _problem(text: str, code: int) -> int:
    _print_stderr(f"headgate: {text}")
    return code
