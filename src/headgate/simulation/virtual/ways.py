"""How long does it take from caller to scheduler, from there to a decision, and back from an engine?

In most simulations nothing: what the gateway adds are milliseconds. Where they are what is simulated, a scenario has
ways. Each is a length that depends on the moment.

- The store of a cell: a request passes it four times before it begins, and all four are put before its arrival.
- Deciding: each event takes so long of one processor, one after the other. What is told while it is busy waits; bytes
  pass through the same process, so what comes from engines waits too.
- The network to engines: the whole round trip is put on the way back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from headgate.core.events import Event
from headgate.model.units import Duration, Instant, after
from headgate.simulation.virtual.timeline import Timeline

_Subject = TypeVar("_Subject")

STORE_PASSES = 4


def _at_once(now: Instant) -> Duration:
    del now
    return Duration(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    store_ns: Callable[[Instant], Duration] = _at_once
    """One round trip to the store of the cell."""
    decide_ns: Callable[[Instant], Duration] = _at_once
    """What one event takes."""
    network_ns: Callable[[Instant], Duration] = _at_once
    """One round trip to an engine."""


class Delays:
    """Brings events to the desk, each when it would be there."""

    __slots__ = ("_arrived_at", "_free_at", "_tell", "_timeline", "_ways")

    def __init__(self, ways: Ways, timeline: Timeline, tell: Callable[[Event], None]) -> None:
        self._ways = ways
        self._timeline = timeline
        self._tell = tell
        self._arrived_at = self._free_at = Instant(0)

    def lag_ns(self, now: Instant) -> Duration:
        """How far deciding is behind."""
        return Duration(max(0, self._free_at - now))

    def from_caller(self, event: Event, now: Instant) -> None:
        """None overtakes another."""
        passes = Duration(STORE_PASSES * self._ways.store_ns(now))
        self._arrived_at = max(self._arrived_at, after(now, passes))
        self._timeline.at(self._arrived_at, self._decide, (event, self._arrived_at))

    def from_engine(self, hear: Callable[[_Subject], object], subject: _Subject, now: Instant) -> None:
        self._timeline.at(after(now, self._ways.network_ns(now)), hear, subject)

    def decide(self, event: Event, now: Instant) -> None:
        self._decide((event, now))

    def _decide(self, told: tuple[Event, Instant]) -> None:
        event, now = told
        self._free_at = after(max(self._free_at, now), self._ways.decide_ns(now))
        if self._free_at == now:
            self._tell(event)
        else:
            self._timeline.at(self._free_at, self._tell, event)
