"""Gateways with a ledger, and access to the rows they write."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

from headgate.ports.ledger import UsageRow
from testing.gateway import Config, GatewayInLoop, a_config, gateway_in_loop
from tests.ledger.rows import all_rows


def with_ledger(url: str, folder: Path, *engines: str, **settings: Any) -> Config:
    config = a_config(*engines, **settings)
    ledger = {"spool_directory": str(folder / "spool"), "metadata_keys": ["feature", "conversation"]}
    return config | {"key_secret": "a secret that is only for tests", "database": {"url": url}, "ledger": ledger}


@asynccontextmanager
async def a_gateway(url: str, folder: Path, *engines: str, **settings: Any) -> AsyncIterator[GatewayInLoop]:
    async with gateway_in_loop(with_ledger(url, folder, *engines, **settings), folder) as gateway:
        yield gateway


async def written(gateway: GatewayInLoop, rows: int) -> list[UsageRow]:
    """Wait until at least `rows` rows have been written and none are pending, and return all rows."""

    def there(status: dict[str, Any]) -> bool:
        ledger = status["ledger"]
        return ledger["rows_written"] >= rows and not ledger["rows_waiting"] and not status["requests_open"]

    await gateway.wait_for_status(there)
    url = gateway.gateway._settings.database
    assert url is not None
    link = await asyncpg.connect(url.url)
    try:
        return await all_rows(link)
    finally:
        await link.close()
