"""Minimum shares of lower-priority bands.

A band can have a minimum share of a pool's work, regardless of how much higher-priority work is queued. While the band
waits, it earns credit: its share of all engine time served in the pool. A band with positive credit is due. It is
served first, and its credit becomes the negative cost of the request served. In the long run the band therefore gets
exactly its share, and it waits at most the cost of its last request divided by the share. A band that is already due
earns no further credit, so a share that could not be used for lack of capacity does not accumulate.

A band can also be limited to its minimum share. In that case, it is served only when it is due.
"""

from collections.abc import Iterable, Mapping

from headgate.core.counters import MinShareCounter
from headgate.model.units import Duration, PoolName


class MinShares:
    __slots__ = ("_credit", "_percents", "enabled", "limited_bands")

    def __init__(self) -> None:
        self._percents: dict[int, int] = {}
        self.enabled = False
        """Whether any band has a minimum share."""
        self._credit: dict[tuple[PoolName, int], int] = {}
        """Credit by pool and band, in hundredths of a nanosecond. A band with positive credit is due."""
        self.limited_bands: dict[PoolName, frozenset[int]] = {}
        """Bands that are limited to their minimum share, by pool."""

    def change_rules(self, percents: Mapping[int, int]) -> None:
        """Sets the minimum share of each band that has one, in percent."""
        self._percents = dict(percents)
        self.enabled = bool(percents)
        self._credit = {key: credit for key, credit in self._credit.items() if key[1] in percents}

    def counters(self) -> tuple[MinShareCounter, ...]:
        return tuple(MinShareCounter(pool, band, credit) for (pool, band), credit in self._credit.items())

    def restore(self, counters: Iterable[MinShareCounter]) -> None:
        self._credit = {(each.pool, each.band): each.credit for each in counters if each.band in self._percents}

    def order(self, pool: PoolName, bands: Iterable[int], group: tuple[PoolName, ...] = ()) -> list[int]:
        """Returns the bands that may be served, in order. `bands` must be in order of priority.

        `group` are the pools that share engines with this one, whose limits apply too.
        """
        if not self.limited_bands and not self._any_due(pool):
            return list(bands)
        due = [band for band in bands if self._credit.get((pool, band), 0) > 0]
        held = self.limited_bands.get(pool, frozenset())
        for each in group:
            held |= self.limited_bands.get(each, frozenset())
        return due + [band for band in bands if band not in due and band not in held]

    def _any_due(self, pool: PoolName) -> bool:
        for band in self._percents:  # noqa: SIM110 - `any` would create a generator for every dispatch.
            if self._credit.get((pool, band), 0) > 0:
                return True
        return False

    def record_served(self, pool: PoolName, band: int, cost: Duration, waiting: Iterable[int]) -> None:
        """Records a dispatched request from `band`. `waiting` are the bands that still have queued requests."""
        if band in self._percents:
            self._credit[pool, band] = -100 * cost
        self.earn(pool, cost, waiting)

    def earn(self, pool: PoolName, work: Duration, waiting: Iterable[int]) -> None:
        """Adds each waiting band's share of this engine time to its credit, unless the band is already due."""
        for band in waiting:
            percent = self._percents.get(band)
            if percent is not None:
                credit = self._credit.get((pool, band), 0)
                if credit <= 0:
                    self._credit[pool, band] = credit + percent * work
