"""Which bands need not be asked, since what is free at a pool is kept for others?

A class may reserve places. When only those are left, everybody else who waits would be asked in vain, each at every
event. So before a place is offered the few classes are looked at, instead of all who wait in them.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final

from headgate.core.routing.pools import PoolRecord
from headgate.model.policy import ServiceClass
from headgate.model.units import ClassName

_LOOKED_AT_MAX: Final = 8
"""Of a pool, in the order of load."""
_NONE: Final[tuple[int, ...]] = ()


def closed_bands(
    pool: PoolRecord, classes: tuple[ServiceClass, ...], waiting: Callable[[ClassName], int]
) -> tuple[int, ...]:
    """The bands in which nobody waits for whose class a place is free; `waiting` counts those of a class who wait."""
    if not pool.terms.reserves:
        return _NONE
    is_open: dict[int, bool] = {}
    for each in classes:
        if not is_open.get(each.band, False):
            is_open[each.band] = waiting(each.name) > 0 and _has_place(pool, each.name)
    return tuple(band for band, may_go in is_open.items() if not may_go)


def _has_place(pool: PoolRecord, name: ClassName) -> bool:
    return any(endpoint.open_to(name) for endpoint in islice(pool.by_load(), _LOOKED_AT_MAX))
