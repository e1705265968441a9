"""Endpoints listed in the configuration, and the differences between two such lists."""

from collections.abc import Callable, Iterable

from headgate.core.events import EndpointJoined, EndpointLeaving
from headgate.fleets.options import EndpointOptions
from headgate.model.endpoint import Endpoint
from headgate.ports.fleet import FleetEndpoint


class StaticFleet:
    """Fleet with a fixed list of endpoints."""

    def __init__(self, endpoints: Iterable[EndpointOptions]) -> None:
        self._endpoints = tuple(
            FleetEndpoint(each.id, each.url, each.in_flight_max, device=each.device, zone=each.zone)
            for each in endpoints
        )

    def endpoints(self) -> tuple[FleetEndpoint, ...]:
        return self._endpoints

    async def start(self, changed: Callable[[], None]) -> None:
        """Does nothing, because the endpoints are already running."""

    async def stop(self, *, drain: bool = False) -> None:
        """Does nothing, because the gateway does not own the endpoints."""


def membership_changes(before: Iterable[Endpoint], after: Iterable[Endpoint]) -> list[EndpointJoined | EndpointLeaving]:
    """Returns the events that change one list into the other. Joins come first, so that capacity never drops to
    zero.
    """
    old = {endpoint.id: endpoint for endpoint in before}
    new = {endpoint.id: endpoint for endpoint in after}
    joined = [EndpointJoined(endpoint) for endpoint in new.values() if old.get(endpoint.id) != endpoint]
    left = [EndpointLeaving(endpoint_id) for endpoint_id in old if endpoint_id not in new]
    return [*joined, *left]
