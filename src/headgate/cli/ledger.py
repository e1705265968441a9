"""Prepare the database for tenants, keys and usage."""

import argparse
import os
import sys

from headgate.cli.input.argument_types import add_actions, add_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(add_actions(parser)("migrate", "Create or upgrade the database schema for this version."))


def run(args: argparse.Namespace) -> int:
    import asyncio

    from headgate.config.load import database_url
    from headgate.config.problems import ConfigErrors

    try:
        url = database_url(args.config, os.environ)
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return 1
    if url is None:
        return _problem(f"{args.config} has no database; set database.url")
    try:
        from headgate.control.directory_sync import migrate_database
    except ImportError as error:
        return _problem(f"{error}; install headgate[ledger]")
    try:
        steps = asyncio.run(migrate_database(url, lambda step: _print_stderr(f"applying {step.number:04} {step.name}")))
    except OSError as error:
        return _problem(f"the migration failed: {error.strerror}; each step is atomic, so it is safe to try again")
    print(f"{steps} steps applied" if steps else "the database schema is up to date")
    return 0


def _print_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def _problem(text: str) -> int:
    _print_stderr(f"headgate: {text}")
    return 1
