"""Uses engine metrics to detect that attempts of silent members have finished.

An engine reports how many sequences it is running, whichever member sent them. For connected members, the scheduler
knows which attempts must be running: those that have started, or were granted so long ago that they must have started,
and that are not reported as ended shortly afterwards. The remaining sequences may belong to the silent member. If there
are fewer of them than the member had attempts, the difference has ended.
"""

from collections.abc import Callable, Iterable

from headgate.core.events import EndpointMetricsReported
from headgate.hosts.cell.leader.peers import AssignedRequest, AttemptPlacement
from headgate.hosts.cell.protocol.views import MemberPresence
from headgate.hosts.cell.timing import Timing
from headgate.model.units import Duration, EndpointId, Instant, RequestId, after

_Key = tuple[RequestId, int]


class _Measurement:
    """Measurement of one engine, and the attempts known to run there at that time."""

    __slots__ = ("absent", "at", "sequences", "sure")

    def __init__(self, at: Instant, sequences: int, sure: list[_Key], absent: list[_Key]) -> None:
        self.at = at
        self.sequences = sequences
        self.sure = sure
        self.absent = absent


class VanishedAttempts:
    __slots__ = ("_sights", "_timing")

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._sights: dict[EndpointId, _Measurement] = {}

    def record(
        self,
        said: EndpointMetricsReported,
        book: Iterable[AssignedRequest],
        now: Instant,
        *,
        sharing: tuple[EndpointId, ...],
    ) -> None:
        """Records a measurement. One per engine is kept until it is old enough to be evaluated.

        `sharing` are all endpoints on the engine.
        """
        if any(each in self._sights for each in sharing):
            return
        sure: list[_Key] = []
        absent: list[_Key] = []
        for booked in book:
            gone = booked.peer.presence in (MemberPresence.ABSENT, MemberPresence.DEAD)
            for number, place in booked.attempts.items():
                if place.endpoint_id not in sharing:
                    continue
                if gone:
                    absent.append((booked.ticket.request_id, number))
                elif self._is_surely_running(place, now):
                    sure.append((booked.ticket.request_id, number))
        if absent:
            self._sights[said.endpoint_id] = _Measurement(now, said.running + said.waiting, sure, absent)

    def _is_surely_running(self, place: AttemptPlacement, now: Instant) -> bool:
        waits_ns = Duration(self._timing.start_within_ns + self._timing.settle_ns)
        return place.started or now - place.since >= self._timing.max_elapsed(waits_ns)

    def find(self, is_booked: Callable[[RequestId, int], bool], now: Instant) -> list[_Key]:
        """Returns silent members' attempts that are no longer running on their engines."""
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
