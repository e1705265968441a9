"""Endpoints, as known to one process in the cell.

The scheduler probes the endpoints for the cell and informs the members, so that each member can continue as an island
or as the next scheduler.
"""

from collections.abc import Iterator
from dataclasses import replace

from headgate.core.events import (
    EndpointJoined,
    EndpointLeaving,
    EndpointMetricsReported,
    EndpointNotReady,
    EndpointProbed,
    EndpointReady,
    FleetEvent,
)
from headgate.hosts.cell.protocol.messages import EndpointRemoved, EndpointUpdate
from headgate.model.endpoint import Endpoint
from headgate.model.units import EndpointId


class KnownEndpoints:
    __slots__ = ("_ready", "by_id")

    def __init__(self) -> None:
        self.by_id: dict[EndpointId, Endpoint] = {}
        self._ready: dict[EndpointId, bool] = {}

    def apply_event(self, event: FleetEvent) -> EndpointUpdate | EndpointRemoved | None:
        """Applies an event from this process. Returns the update for other processes, if any."""
        match event:
            case EndpointJoined(endpoint):
                self.by_id[endpoint.id] = self._with_adapters(endpoint)
                self._ready.setdefault(endpoint.id, False)
            case EndpointReady(endpoint_id) | EndpointNotReady(endpoint_id):
                if endpoint_id not in self.by_id:
                    return None
                self._ready[endpoint_id] = isinstance(event, EndpointReady)
            case EndpointLeaving(endpoint_id):
                if self.by_id.pop(endpoint_id, None) is None:
                    return None
                del self._ready[endpoint_id]
                return EndpointRemoved(endpoint_id)
            case EndpointMetricsReported() | EndpointProbed():
                return None
        endpoint_id = event.endpoint.id if isinstance(event, EndpointJoined) else event.endpoint_id
        return EndpointUpdate(self.by_id[endpoint_id], self._ready[endpoint_id])

    def _with_adapters(self, endpoint: Endpoint) -> Endpoint:
        """Returns the endpoint with the adapters that are known.

        Every process has a fleet, but only the one that probes the engines observes their adapters.
        """
        known = self.by_id.get(endpoint.id)
        if known is None or endpoint.adapters is not None:
            return endpoint
        return replace(endpoint, adapters=known.adapters, max_lora=known.max_lora)

    def apply_update(self, update: EndpointUpdate | EndpointRemoved) -> None:
        """Applies an update from the scheduler."""
        if isinstance(update, EndpointUpdate):
            self.by_id[update.endpoint.id] = update.endpoint
            self._ready[update.endpoint.id] = update.ready
        else:
            self.by_id.pop(update.endpoint_id, None)
            self._ready.pop(update.endpoint_id, None)

    def sharing(self, endpoint_id: EndpointId) -> tuple[EndpointId, ...]:
        """Returns all endpoints on the same engine, including this one."""
        endpoint = self.by_id.get(endpoint_id)
        if endpoint is None or not endpoint.engine:
            return (endpoint_id,)
        return tuple(each.id for each in self.by_id.values() if each.engine == endpoint.engine)

    def is_ready(self, endpoint_id: EndpointId) -> bool:
        return self._ready.get(endpoint_id, False)

    def update(self, endpoint_id: EndpointId) -> EndpointUpdate | None:
        """Returns the state of an endpoint for other processes, or None if it is unknown."""
        endpoint = self.by_id.get(endpoint_id)
        return None if endpoint is None else EndpointUpdate(endpoint, self._ready[endpoint_id])

    def updates(self) -> Iterator[EndpointUpdate]:
        for endpoint in self.by_id.values():
            yield EndpointUpdate(endpoint, self._ready[endpoint.id])
