"""Which endpoints came and went when the list in the configuration changed?"""

from collections.abc import Iterable

from headgate.core.events import EndpointJoined, EndpointLeaving
from headgate.model.endpoint import Endpoint


def changes(before: Iterable[Endpoint], after: Iterable[Endpoint]) -> list[EndpointJoined | EndpointLeaving]:
    """The events that turn one list into the other: first those that come, so that work has somewhere to go."""
    old = {endpoint.id: endpoint for endpoint in before}
    new = {endpoint.id: endpoint for endpoint in after}
    joined = [EndpointJoined(endpoint) for endpoint in new.values() if old.get(endpoint.id) != endpoint]
    left = [EndpointLeaving(endpoint_id) for endpoint_id in old if endpoint_id not in new]
    return [*joined, *left]
