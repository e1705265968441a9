"""Options of one endpoint that is listed by its address."""

from dataclasses import dataclass

from headgate.model.units import EndpointId


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    id: EndpointId
    url: str
    """Scheme, host and, if given, port; no path, no trailing slash."""
    in_flight_max: int
    device: str = ""
    """Endpoints that name the same device share its capacity; empty for a device of its own."""
    zone: str = ""
