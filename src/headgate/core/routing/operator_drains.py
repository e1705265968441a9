"""Endpoints that operators drain, and those whose attempts the drain also aborts."""

from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.placement import Placement
from headgate.model.units import EndpointId


class OperatorDrains:
    """An operator drains an endpoint to stop its engine, so a drain applies to all endpoints of that engine."""

    __slots__ = ("_drained", "_interrupted", "_placement")

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._drained: tuple[EndpointId, ...] = ()
        self._interrupted: tuple[EndpointId, ...] = ()

    def change(
        self, endpoint_ids: tuple[EndpointId, ...], interrupted: tuple[EndpointId, ...] = ()
    ) -> list[EndpointRecord]:
        """Replaces the drained endpoints, which get no new requests.

        Returns the endpoints whose attempts must be aborted now, because they were not `interrupted` before.
        """
        if (endpoint_ids, interrupted) == (self._drained, self._interrupted):
            return []
        endpoints = self._placement.endpoints.values()
        before = {each.id for each in endpoints if self._interrupted and self.interrupts(each)}
        self._drained, self._interrupted = endpoint_ids, interrupted
        self.update()
        return [each for each in endpoints if interrupted and self.interrupts(each) and each.id not in before]

    def update(self) -> None:
        """Applies the drains to all endpoints, after endpoints or their engines have changed."""
        for endpoint in self._placement.endpoints.values():
            drained = _names(endpoint, self._drained)
            if drained is not endpoint.drained:
                endpoint.drained = drained
                self._placement.place(endpoint)

    def drains(self, endpoint: EndpointRecord) -> bool:
        return _names(endpoint, self._drained)

    def interrupts(self, endpoint: EndpointRecord) -> bool:
        return _names(endpoint, self._interrupted)


def _names(endpoint: EndpointRecord, endpoint_ids: tuple[EndpointId, ...]) -> bool:
    """Whether one of these is the endpoint or another one on the same engine."""
    return endpoint.id in endpoint_ids or any(each.id in endpoint_ids for each in endpoint.company)
