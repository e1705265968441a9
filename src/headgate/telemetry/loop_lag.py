"""Measures event loop lag.

A task sleeps for a fixed interval and records how late it wakes. Every stream in the process is delayed by the same
amount.
"""

import asyncio

from headgate.model.units import SECOND
from headgate.telemetry.histogram import Histogram

_INTERVAL_S = 0.1


async def measure_loop_lag(lag: Histogram) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _INTERVAL_S
        await asyncio.sleep(_INTERVAL_S)
        lag.add(max(0, round((loop.time() - due) * SECOND)))
