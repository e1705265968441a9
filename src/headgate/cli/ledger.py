"""Prepare the database for tenants, keys and usage."""

import argparse
import os
import sys

from headgate.cli.input.argument_types import add_actions, add_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    migrate = add_actions(parser)("migrate", "Create or upgrade the database schema for this version.")
    add_config(migrate)
    migrate.add_argument(
        "--check",
        action="store_true",
        help="Change nothing. Exit 0 if the schema is up to date, 1 if migrations are pending, 2 on an error.",
    )


def run(args: argparse.Namespace) -> int:
    from headgate.config.load import database_url
    from headgate.config.problems import ConfigErrors

    failed = 2 if args.check else 1
    try:
        url = database_url(args.config, os.environ)
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return failed
    if url is None:
        return _problem(f"{args.config} has no database; set database.url", failed)
    try:
        return _check(url) if args.check else _migrate(url)
    except ImportError as error:
        return _problem(f"{error}; install headgate[ledger]", failed)
    except OSError as error:
        what = "the check failed" if args.check else "the migration failed"
        then = "" if args.check else "; each step is atomic, so it is safe to try again"
        return _problem(f"{what}: {error.strerror}{then}", failed)


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
