"""Which endpoint of a pool has room, and which has the most?

The endpoints of a pool that could take one more attempt stand on shelves, one shelf per
number of attempts in flight. Taking from the lowest shelf finds the least loaded endpoint
without looking at the others, however many there are; among equals the one that has stood
there longest goes first.
"""

from collections import OrderedDict

from headgate.model.endpoint import Endpoint, EndpointState
from headgate.model.units import Duration, EndpointId, Instant


class EndpointRecord:
    """One endpoint as the scheduler sees it."""

    __slots__ = (
        "counted_live",
        "ejections",
        "failures",
        "id",
        "in_flight",
        "in_flight_max",
        "last_heard",
        "leaving",
        "pool",
        "returns_at",
        "shelf",
        "state",
        "streams",
    )

    def __init__(self, endpoint: Endpoint, now: Instant) -> None:
        self.id = endpoint.id
        self.pool = endpoint.pool
        self.in_flight_max = endpoint.in_flight_max
        self.state = EndpointState.WARMING
        self.leaving = False
        self.in_flight = 0
        self.streams = 0
        """How many of those in flight have begun to stream, and so must show signs of life."""
        self.last_heard = now
        self.failures = 0
        """Failures in a row."""
        self.ejections = 0
        """Ejections in a row."""
        self.returns_at = now
        self.counted_live = False
        self.shelf: int | None = None

    @property
    def serving(self) -> bool:
        """Whether its engine is thought to be able to serve."""
        return self.state is EndpointState.READY or self.state is EndpointState.TRIAL

    @property
    def live(self) -> bool:
        """Whether it takes work at all, be it full at the moment or not."""
        return self.serving and not self.leaving

    @property
    def room(self) -> bool:
        limit = min(1, self.in_flight_max) if self.state is EndpointState.TRIAL else self.in_flight_max
        return self.live and self.in_flight < limit


class PoolRecord:
    """The endpoints of one pool."""

    __slots__ = ("_lowest", "_shelves", "endpoints", "live")

    def __init__(self) -> None:
        self.endpoints: dict[EndpointId, EndpointRecord] = {}
        self.live = 0
        """How many endpoints take work."""
        self._shelves: list[OrderedDict[EndpointId, EndpointRecord]] = []
        self._lowest = 0

    def place(self, endpoint: EndpointRecord) -> None:
        """Puts the endpoint where it belongs after any change of it."""
        self.live += endpoint.live - endpoint.counted_live
        endpoint.counted_live = endpoint.live
        if endpoint.shelf is not None:
            del self._shelves[endpoint.shelf][endpoint.id]
            endpoint.shelf = None
        if endpoint.room:
            while len(self._shelves) <= endpoint.in_flight:
                self._shelves.append(OrderedDict())
            self._shelves[endpoint.in_flight][endpoint.id] = endpoint
            endpoint.shelf = endpoint.in_flight
            self._lowest = min(self._lowest, endpoint.in_flight)

    def least_loaded(self, avoid: EndpointRecord | None = None) -> EndpointRecord | None:
        """The endpoint with room and the fewest attempts in flight, other than `avoid`."""
        shelves = self._shelves
        while self._lowest < len(shelves) and not shelves[self._lowest]:
            self._lowest += 1
        for level in range(self._lowest, len(shelves)):
            for endpoint in shelves[level].values():
                if endpoint is not avoid:
                    return endpoint
        return None

    @property
    def warming(self) -> bool:
        """Whether an endpoint is expected of which nobody knows how long it has been starting."""
        return any(each.state is EndpointState.WARMING and not each.leaving for each in self.endpoints.values())

    def soonest(self, now: Instant, warm_up: Duration) -> Duration | None:
        """How long until an endpoint that does not take work at the moment may do so; None if none can."""
        waits = [
            warm_up if endpoint.state is EndpointState.WARMING else Duration(max(0, endpoint.returns_at - now))
            for endpoint in self.endpoints.values()
            if not endpoint.leaving
        ]
        return min(waits, default=None)
