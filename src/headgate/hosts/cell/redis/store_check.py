"""Checks whether a cell can use the store at a given address."""

import asyncio
import re
from dataclasses import dataclass
from typing import Final

import hiredis

from headgate.hosts.cell.redis import scripts
from headgate.hosts.cell.redis.connection import RedisConnection
from headgate.hosts.cell.redis.connector import Connector
from headgate.hosts.cell.redis.keys import CellKeys
from headgate.hosts.cell.redis.location import parse_store_url
from headgate.hosts.cell.redis.store_errors import STORE_ERRORS, describe_error

CHECK_S_MAX: Final = 2.0
_ROUND_TRIPS: Final = 20
VERSION_MIN: Final = (7, 0)


@dataclass(frozen=True, slots=True)
class StoreInfo:
    program: str
    """Name and version that the store reports."""
    is_old: bool
    round_trip_s: float
    """Median of several round trips."""
    eviction_policy: str | None
    """Eviction policy used when memory is full. None if the store does not evict keys or does not report it."""


async def check_store(url: str, cell: str) -> StoreInfo | str:
    """Returns information about the store, or the problem and the next step if the store cannot be used.

    The text does not contain the password.
    """
    connector, address = Connector(parse_store_url(url)), None
    try:
        async with asyncio.timeout(CHECK_S_MAX):
            address = await connector.address()
            checks = [CellKeys(cell).check, *scripts.LOAD_COMMANDS]
            wire = await connector.connect_responsive(address, _ignore, checks)
            try:
                return await _query_info(wire)
            finally:
                wire.close()
    except STORE_ERRORS as cause:
        return describe_error(cause, connector.location, address)


async def _query_info(wire: RedisConnection) -> StoreInfo:
    [info] = await wire.request([("INFO", "server")], CHECK_S_MAX)
    told = dict(line.split(":", 1) for line in info.decode(errors="replace").splitlines() if ":" in line)
    is_valkey = "valkey_version" in told
    version = told["valkey_version"] if is_valkey else told.get("redis_version", "0")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    loop, took = asyncio.get_running_loop(), list[float]()
    for _ in range(_ROUND_TRIPS):
        began = loop.time()
        await wire.request([("PING",)], CHECK_S_MAX)
        took.append(loop.time() - began)
    program = f"{'Valkey' if is_valkey else 'Redis'} {version}"
    return StoreInfo(program, numbers < VERSION_MIN, sorted(took)[_ROUND_TRIPS // 2], await _eviction_policy(wire))


async def _eviction_policy(wire: RedisConnection) -> str | None:
    """Returns the eviction policy. Hosted stores may not report it."""
    try:
        [answer] = await wire.request([("CONFIG", "GET", "maxmemory-policy")], CHECK_S_MAX)
    except hiredis.ReplyError:
        return None
    rule = answer[1].decode() if answer else "noeviction"
    return None if rule == "noeviction" else rule


def _ignore(cause: Exception) -> None:
    """Ignores the error, because the waiting caller receives it."""
