"""Is it a lower band's turn, although a higher one waits?

A band may have a floor: a share of a pool's work that it gets however much waits before it. While it waits it earns
that share of whatever is served at the pool; once it has earned anything it is due, goes first, and owes what its
request costs. So in the long run it gets its share and no more, and it waits for no longer than its last request took,
divided by the share. It earns nothing beyond being due: what could not be served for want of room is not saved up.

A band can also be held at its floor, and is then served when it is due and at no other time.
"""

from collections.abc import Iterable, Mapping

from headgate.core.counters import FloorCounter
from headgate.model.units import Duration, PoolName


class Floors:
    __slots__ = ("_credit", "_percents", "held")

    def __init__(self) -> None:
        self._percents: dict[int, int] = {}
        self._credit: dict[tuple[PoolName, int], int] = {}
        """In hundredths of the engine time earned; above zero the band is due."""
        self.held: dict[PoolName, frozenset[int]] = {}
        """At some pools, bands that are served only when they are due."""

    @property
    def kept(self) -> bool:
        """Whether any band has a floor."""
        return bool(self._percents)

    def change_rules(self, percents: Mapping[int, int]) -> None:
        """Takes the floor of each band that has one."""
        self._percents = dict(percents)
        self._credit = {key: credit for key, credit in self._credit.items() if key[1] in percents}

    def counters(self) -> tuple[FloorCounter, ...]:
        return tuple(FloorCounter(pool, band, credit) for (pool, band), credit in self._credit.items())

    def restore(self, counters: Iterable[FloorCounter]) -> None:
        self._credit = {(each.pool, each.band): each.credit for each in counters if each.band in self._percents}

    def order(self, pool: PoolName, bands: Iterable[int]) -> list[int]:
        """Who is asked, in this order, of the bands in the order of priority."""
        if not self._percents and not self.held:
            return list(bands)
        due = [band for band in bands if self._credit.get((pool, band), 0) > 0]
        held = self.held.get(pool, ())
        return due + [band for band in bands if band not in due and band not in held]

    def served(self, pool: PoolName, band: int, cost: Duration, waiting: Iterable[int]) -> None:
        """Notes that a request of this band went, and that of these bands some still wait."""
        if band in self._percents:
            self._credit[pool, band] = -100 * cost
        self.earn(pool, cost, waiting)

    def earn(self, pool: PoolName, work: Duration, waiting: Iterable[int]) -> None:
        """So much engine time was spent at the pool."""
        for band in waiting:
            percent = self._percents.get(band)
            if percent is not None:
                credit = self._credit.get((pool, band), 0)
                if credit <= 0:
                    self._credit[pool, band] = credit + percent * work
