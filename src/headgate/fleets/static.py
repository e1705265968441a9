"""Which endpoints does a list in the configuration name, and which came and went when it changed?"""

from collections.abc import Callable, Iterable

from headgate.core.events import EndpointJoined, EndpointLeaving
from headgate.fleets.options import EndpointOptions
from headgate.model.endpoint import Endpoint
from headgate.ports.fleet import FleetEndpoint


class StaticFleet:
    """Those that were listed, as long as nobody lists others."""

    def __init__(self, endpoints: Iterable[EndpointOptions]) -> None:
        self._endpoints = tuple(
            FleetEndpoint(each.id, each.url, each.in_flight_max, device=each.device, zone=each.zone)
            for each in endpoints
        )

    def endpoints(self) -> tuple[FleetEndpoint, ...]:
        return self._endpoints

    async def start(self, changed: Callable[[], None]) -> None:
        """They are there already."""

    async def stop(self, *, drain: bool = False) -> None:
        """They are somebody else's."""


def changes(before: Iterable[Endpoint], after: Iterable[Endpoint]) -> list[EndpointJoined | EndpointLeaving]:
    """The events that turn one list into the other: first those that come, so that work has somewhere to go."""
    old = {endpoint.id: endpoint for endpoint in before}
    new = {endpoint.id: endpoint for endpoint in after}
    joined = [EndpointJoined(endpoint) for endpoint in new.values() if old.get(endpoint.id) != endpoint]
    left = [EndpointLeaving(endpoint_id) for endpoint_id in old if endpoint_id not in new]
    return [*joined, *left]
