"""Latencies between clients, the scheduler and engines.

Most simulations ignore them, because a gateway adds only milliseconds. A scenario can set `ways` to simulate them. Each
latency is a function of time.

- Cell store: a request makes four round trips before it starts. All four are added before its arrival.
- Decisions: each event takes `decide_ns` on a single CPU. Events that arrive in the meantime wait. Response data passes
  through the same process, so events from engines wait too.
- Network to engines: the full round trip is added to the response.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from headgate.core.events import Event
from headgate.model.units import Duration, Instant, after
from headgate.simulation.virtual.timeline import Timeline

_Subject = TypeVar("_Subject")

STORE_ROUND_TRIPS = 4


def _no_latency(now: Instant) -> Duration:
    del now
    return Duration(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLatencies:
    store_ns: Callable[[Instant], Duration] = _no_latency
    """Round-trip time to the cell's store."""
    decide_ns: Callable[[Instant], Duration] = _no_latency
    """CPU time per event."""
    network_ns: Callable[[Instant], Duration] = _no_latency
    """Round-trip time to an engine."""


class DelayedDelivery:
    """Delivers events to the decision loop after a delay."""

    __slots__ = ("_arrived_at", "_emit", "_idle_at", "_latencies", "_timeline")

    def __init__(self, latencies: LinkLatencies, timeline: Timeline, emit: Callable[[Event], None]) -> None:
        self._latencies = latencies
        self._timeline = timeline
        self._emit = emit
        self._arrived_at = self._idle_at = Instant(0)

    def lag_ns(self, now: Instant) -> Duration:
        """Returns how far decisions lag behind events."""
        return Duration(max(0, self._idle_at - now))

    def from_caller(self, event: Event, now: Instant) -> None:
        """Delivers an event from a client. Events from clients stay in order."""
        passes = Duration(STORE_ROUND_TRIPS * self._latencies.store_ns(now))
        self._arrived_at = max(self._arrived_at, after(now, passes))
        self._timeline.schedule(self._arrived_at, self._decide, (event, self._arrived_at))

    def from_engine(self, callback: Callable[[_Subject], object], subject: _Subject, now: Instant) -> None:
        self._timeline.schedule(after(now, self._latencies.network_ns(now)), callback, subject)

    def decide(self, event: Event, now: Instant) -> None:
        self._decide((event, now))

    def _decide(self, item: tuple[Event, Instant]) -> None:
        event, now = item
        self._idle_at = after(max(self._idle_at, now), self._latencies.decide_ns(now))
        if self._idle_at == now:
            self._emit(event)
        else:
            self._timeline.schedule(self._idle_at, self._emit, event)
