"""Is the database of the shape that this version needs, for tenants, keys and usage?"""

import argparse
import os
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    migrate = actions.add_parser("migrate", help="bring the database to the shape that this version needs")
    migrate.add_argument(
        "--config", default=Path("headgate.yaml"), type=Path, metavar="FILE", help="the configuration that names it"
    )


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
        return _problem(f"{args.config} names no database; write its address into database.url")
    try:
        from headgate.control.directory_sync import migrate_database
    except ImportError as error:
        return _problem(f"{error}; install headgate[ledger]")
    try:
        steps = asyncio.run(migrate_database(url, lambda step: _tell(f"applying {step.number:04} {step.name}")))
    except OSError as error:
        return _problem(
            f"the database was not migrated: {error.strerror}; each step is whole or not there, so try again"
        )
    print(f"{steps} steps applied" if steps else "nothing to do: the database is as this version needs it")
    return 0


def _tell(text: str) -> None:
    print(text, file=sys.stderr)


def _problem(text: str) -> int:
    _tell(f"headgate: {text}")
    return 1
