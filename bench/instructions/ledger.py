"""A database for the gateway under measurement, with or without a ledger in it."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.mock_upstream import MODEL
from bench.targets import IN_FLIGHT_MAX, SPEED
from headgate.control.directory_sync import migrate_database
from testing.postgres import postgres

Settings = dict[str, Any]


@contextmanager
def database(upstream_url: str, folder: Path) -> Generator[tuple[Settings, Settings]]:
    """Run a database. Yield a gateway's settings without and with a ledger. All else is equal, including prices."""
    pool = {"engine": "vllm", "served_model": MODEL, "in_flight_max": IN_FLIGHT_MAX, "speed": SPEED}
    pool |= {"endpoints": [upstream_url], "prices": {"per_hour": 2.5}}
    with postgres() as server:
        asyncio.run(migrate_database(server.url, lambda _: None))
        common: Settings = {"database": {"url": server.url}, "pools": {"bench": pool}}
        yield common, common | {"ledger": {"spool_directory": str(folder / "spool")}}
