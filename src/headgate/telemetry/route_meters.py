"""Counters for the requests of models with routes. The labels are the models and routes of the policy."""

from collections.abc import Iterator

from headgate.core.commands import Dispatch, End
from headgate.model.policy import Model
from headgate.model.routes import MirrorResult
from headgate.model.ticket import Ticket
from headgate.model.units import ModelName, RequestId
from headgate.telemetry.exposition import MetricFamily, family
from headgate.telemetry.meter_types import OUTCOME_GROUPS, OutcomeGroup

_OPEN_MAX = 262_144
"""Maximum number of open requests tracked. One process never has this many."""


class RouteMeters:
    """Requests by model, route and result."""

    def __init__(self, *, open_max: int = _OPEN_MAX) -> None:
        self.models: frozenset[ModelName] = frozenset()
        """Models with routes."""
        self.requests: dict[tuple[str, str], dict[OutcomeGroup, int]] = {}
        """Ended requests by model and route."""
        self.mirrored: dict[tuple[str, str], dict[MirrorResult, int]] = {}
        """Requests selected for copying, by model and route."""
        self._open: dict[RequestId, tuple[ModelName, str]] = {}
        """Model and latest route of each open request of these models."""
        self._open_max = open_max

    def change_models(self, models: tuple[Model, ...]) -> None:
        """Keeps the counts of the routes that remain."""
        self.models = frozenset(each.name for each in models if each.routes)
        names = [(each.name, route.name) for each in models for route in each.routes]
        self.requests = {key: self.requests.get(key) or dict.fromkeys(OutcomeGroup, 0) for key in names}
        mirrors = [(each.name, route.name) for each in models for route in each.routes if route.mirror is not None]
        self.mirrored = {key: self.mirrored.get(key) or dict.fromkeys(MirrorResult, 0) for key in mirrors}
        self._open = {request_id: kept for request_id, kept in self._open.items() if kept[0] in self.models}

    def arrived(self, ticket: Ticket) -> None:
        if len(self._open) < self._open_max:
            self._open[ticket.request_id] = (ticket.model, "")

    def dispatched(self, command: Dispatch) -> None:
        found = self._open.get(command.request_id)
        if found is not None:
            self._open[command.request_id] = (found[0], command.route)

    def ended(self, command: End) -> None:
        """Counts a request that was sent on a route."""
        found = self._open.pop(command.request_id, None)
        if found is not None and (counts := self.requests.get(found)) is not None:
            counts[OUTCOME_GROUPS[command.outcome]] += 1

    def count_mirror(self, model: ModelName, route: str, result: MirrorResult) -> None:
        """Counts a request that was selected for copying."""
        if (counts := self.mirrored.get((model, route))) is not None:
            counts[result] += 1


def route_metrics(meters: RouteMeters) -> Iterator[MetricFamily]:
    requests = family("headgate_route_requests_total")
    for (model, route), counts in tuple(meters.requests.items()):
        for group, count in counts.items():
            requests.add((model, route, group.value), count)
    if meters.requests:
        yield requests
    if meters.mirrored:
        mirrored = family("headgate_mirrored_requests_total")
        for (model, route), results in tuple(meters.mirrored.items()):
            for result, count in results.items():
                mirrored.add((model, route, result.value), count)
        yield mirrored
