"""Finds priority bands that can be skipped because a pool's free slots are reserved for other classes.

A class can reserve slots. When only reserved slots are free, offering them to every other queued request at every event
would be wasted work. Checking the classes first is cheap, because there are few of them.
"""

from collections.abc import Callable
from typing import Final

from headgate.core.routing.pools import PoolRecord
from headgate.model.policy import ServiceClass
from headgate.model.units import ClassName

_ENDPOINTS_SCANNED_MAX: Final = 8
"""Maximum number of endpoints checked per pool, in order of load."""


def closed_bands(
    pool: PoolRecord, classes: tuple[ServiceClass, ...], waiting: Callable[[ClassName], int]
) -> tuple[int, ...]:
    """Returns the bands in which no queued request can use a free slot.

    `waiting` returns the number of requests waiting in a class.
    """
    is_open: dict[int, bool] = {}
    for each in classes:
        if not is_open.get(each.band, False):
            is_open[each.band] = waiting(each.name) > 0 and _has_place(pool, each.name)
    return tuple(band for band, may_go in is_open.items() if not may_go)


def _has_place(pool: PoolRecord, name: ClassName) -> bool:
    return pool.first_by_load(lambda each: each.has_place_for(name), scanned_max=_ENDPOINTS_SCANNED_MAX) is not None
