"""Options for one statically configured endpoint."""

from dataclasses import dataclass

from headgate.model.units import EndpointId


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    id: EndpointId
    url: str
    """Scheme, host, optional port and optional base path, without a trailing slash."""
    in_flight_max: int
    device: str = ""
    """The endpoint's device. Endpoints with the same device share its capacity. If empty, the endpoint has its own
    device.
    """
    zone: str = ""
