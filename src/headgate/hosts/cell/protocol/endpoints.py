"""What does a process of the cell know of the endpoints?

The scheduler looks at them for all, and tells the members, so that each of them can go on where it stopped: as an
island, or as the next scheduler.
"""

from collections.abc import Iterator

from headgate.core.events import (
    EndpointJoined,
    EndpointLeaving,
    EndpointMeasured,
    EndpointProbed,
    EndpointReadied,
    EndpointUnreadied,
    FleetEvent,
)
from headgate.hosts.cell.protocol.messages import EndpointGone, EndpointTold
from headgate.model.endpoint import Endpoint
from headgate.model.units import EndpointId


class KnownEndpoints:
    __slots__ = ("_ready", "by_id")

    def __init__(self) -> None:
        self.by_id: dict[EndpointId, Endpoint] = {}
        self._ready: dict[EndpointId, bool] = {}

    def note(self, event: FleetEvent) -> EndpointTold | EndpointGone | None:
        """Takes in what was seen here; what of it is new to others."""
        match event:
            case EndpointJoined(endpoint):
                self.by_id[endpoint.id] = endpoint
                self._ready.setdefault(endpoint.id, False)
            case EndpointReadied(endpoint_id) | EndpointUnreadied(endpoint_id):
                if endpoint_id not in self.by_id:
                    return None
                self._ready[endpoint_id] = isinstance(event, EndpointReadied)
            case EndpointLeaving(endpoint_id):
                if self.by_id.pop(endpoint_id, None) is None:
                    return None
                del self._ready[endpoint_id]
                return EndpointGone(endpoint_id)
            case EndpointMeasured() | EndpointProbed():
                return None
        endpoint_id = event.endpoint.id if isinstance(event, EndpointJoined) else event.endpoint_id
        return EndpointTold(self.by_id[endpoint_id], self._ready[endpoint_id])

    def told(self, news: EndpointTold | EndpointGone) -> None:
        """Takes in what the scheduler says of one."""
        if isinstance(news, EndpointTold):
            self.by_id[news.endpoint.id] = news.endpoint
            self._ready[news.endpoint.id] = news.ready
        else:
            self.by_id.pop(news.endpoint_id, None)
            self._ready.pop(news.endpoint_id, None)

    def ready(self, endpoint_id: EndpointId) -> bool:
        return self._ready.get(endpoint_id, False)

    def all(self) -> Iterator[EndpointTold]:
        for endpoint in self.by_id.values():
            yield EndpointTold(endpoint, self._ready[endpoint.id])
