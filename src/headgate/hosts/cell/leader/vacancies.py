"""Is what a member had at an engine gone, when the member itself says nothing?

An engine tells how many sequences it has, whoever sent them. Of those that talk we know which attempts are surely
there: what has begun, or was granted so long ago that it must have, and is not told to have ended a while later. What
the engine has beyond these may be the silent member's; if that is less than the member had, the rest is gone.
"""

from collections.abc import Callable, Iterable

from headgate.core.events import EndpointMeasured
from headgate.hosts.cell.leader.peers import Booked, Place
from headgate.hosts.cell.protocol.views import Standing
from headgate.hosts.cell.timing import Timing
from headgate.model.units import Duration, EndpointId, Instant, RequestId, after

_Key = tuple[RequestId, int]


class _Sight:
    """What one engine said, and what was known to be there."""

    __slots__ = ("absent", "at", "sequences", "sure")

    def __init__(self, at: Instant, sequences: int, sure: list[_Key], absent: list[_Key]) -> None:
        self.at = at
        self.sequences = sequences
        self.sure = sure
        self.absent = absent


class Vacancies:
    __slots__ = ("_sights", "_timing")

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._sights: dict[EndpointId, _Sight] = {}

    def saw(self, said: EndpointMeasured, book: Iterable[Booked], now: Instant) -> None:
        """An engine has told what it has. One sight of each is kept until it is old enough to tell something."""
        if said.endpoint_id in self._sights:
            return
        sure: list[_Key] = []
        absent: list[_Key] = []
        for booked in book:
            gone = booked.peer.standing in (Standing.ABSENT, Standing.DEAD)
            for number, place in booked.attempts.items():
                if place.endpoint_id != said.endpoint_id:
                    continue
                if gone:
                    absent.append((booked.ticket.request_id, number))
                elif self._is_there(place, now):
                    sure.append((booked.ticket.request_id, number))
        if absent:
            self._sights[said.endpoint_id] = _Sight(now, said.running + said.waiting, sure, absent)

    def _is_there(self, place: Place, now: Instant) -> bool:
        waits_ns = Duration(self._timing.start_within_ns + self._timing.settle_ns)
        return place.begun or now - place.since >= self._timing.at_most(waits_ns)

    def gone(self, is_booked: Callable[[RequestId, int], bool], now: Instant) -> list[_Key]:
        """Attempts of those who do not answer that are at their engines no more."""
        found: list[_Key] = []
        for endpoint_id, sight in tuple(self._sights.items()):
            if now < after(sight.at, self._timing.settle_ns):
                continue
            del self._sights[endpoint_id]
            there = len([key for key in sight.sure if is_booked(*key)])
            had = [key for key in sight.absent if is_booked(*key)]
            left = max(0, sight.sequences - there)
            found += had[: max(0, len(had) - left)]
        return found
