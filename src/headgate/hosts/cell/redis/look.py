"""Is there a store at this address that a cell can use? Asked once, by whoever sets one up."""

import asyncio
import re
from dataclasses import dataclass
from typing import Final

import hiredis

from headgate.hosts.cell.redis import scripts
from headgate.hosts.cell.redis.connect import Connector
from headgate.hosts.cell.redis.keys import CellKeys
from headgate.hosts.cell.redis.place import place_of
from headgate.hosts.cell.redis.problem import CAUSES, problem_of
from headgate.hosts.cell.redis.wire import Wire

LOOK_S_MAX: Final = 2.0
_ROUND_TRIPS: Final = 20
VERSION_MIN: Final = (7, 0)


@dataclass(frozen=True, slots=True)
class StoreFound:
    program: str
    """As it calls itself, with its version."""
    is_old: bool
    round_trip_s: float
    """The middle one of a few."""
    evicts: str | None
    """By which rule it throws keys away when its memory is full; None where it does not, or does not tell."""


async def look(url: str, cell: str) -> StoreFound | str:
    """What was found; a text where the store cannot be used, with the next step and without the password."""
    connector, address = Connector(place_of(url)), None
    try:
        async with asyncio.timeout(LOOK_S_MAX):
            address = await connector.address()
            checks = [CellKeys(cell).check, *scripts.LOADS]
            wire = await connector.prompt(address, _ignore, checks)
            try:
                return await _ask(wire)
            finally:
                wire.close()
    except CAUSES as cause:
        return problem_of(cause, connector.place, address)


async def _ask(wire: Wire) -> StoreFound:
    [info] = await wire.answers([("INFO", "server")], LOOK_S_MAX)
    told = dict(line.split(":", 1) for line in info.decode(errors="replace").splitlines() if ":" in line)
    is_valkey = "valkey_version" in told
    version = told["valkey_version"] if is_valkey else told.get("redis_version", "0")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    loop, took = asyncio.get_running_loop(), list[float]()
    for _ in range(_ROUND_TRIPS):
        began = loop.time()
        await wire.answers([("PING",)], LOOK_S_MAX)
        took.append(loop.time() - began)
    program = f"{'Valkey' if is_valkey else 'Redis'} {version}"
    return StoreFound(program, numbers < VERSION_MIN, sorted(took)[_ROUND_TRIPS // 2], await _evicts(wire))


async def _evicts(wire: Wire) -> str | None:
    """Whoever hosts it for others may not tell."""
    try:
        [answer] = await wire.answers([("CONFIG", "GET", "maxmemory-policy")], LOOK_S_MAX)
    except hiredis.ReplyError:
        return None
    rule = answer[1].decode() if answer else "noeviction"
    return None if rule == "noeviction" else rule


def _ignore(cause: Exception) -> None:
    """Who waits for an answer is told."""
