"""What the routes of the configured models need from requests."""

from collections.abc import Collection

from headgate.model.policy import Model
from headgate.model.routes import RouteInputs, Sticky
from headgate.model.units import ModelName


def route_inputs(models: Collection[Model]) -> RouteInputs | None:
    """Returns what the routes need in tickets. None if they need nothing, which is the usual case."""
    routed = [each for each in models if each.routes]
    headers = dict.fromkeys(name for model in routed for route in model.routes for name, _ in route.match.headers)
    read = frozenset(each.sticky for each in routed) & {Sticky.USER, Sticky.SESSION}
    return RouteInputs(tuple(headers), read) if headers or read else None


def mirrored_models(models: Collection[Model]) -> dict[ModelName, Model] | None:
    """Returns the models with routes whose requests are copied. None if there are none, which is the usual case."""
    return {each.name: each for each in models if any(route.mirror is not None for route in each.routes)} or None
