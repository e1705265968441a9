"""Does the event loop keep up?

A task that asks to be woken at a fixed pace and notes how late it was. Whatever delays it has
delayed every stream by as much.
"""

import asyncio

from headgate.model.units import SECOND
from headgate.telemetry.histogram import Histogram

_EVERY_S = 0.1


async def measure_for_ever(lag: Histogram) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        lag.add(max(0, round((loop.time() - due) * SECOND)))
