"""Where can a request run?

An endpoint is one engine address as the scheduler knows it: a name, the pool it belongs to,
and how much may be given to it at once. Its URL is the adapters' business.
"""

from dataclasses import dataclass
from enum import StrEnum

from headgate.model.units import EndpointId, PoolName


@dataclass(frozen=True, slots=True)
class Endpoint:
    id: EndpointId
    pool: PoolName
    in_flight_max: int
    device: str = ""
    """Endpoints that name the same device share its capacity; empty means one of its own."""
    zone: str = ""


class EndpointState(StrEnum):
    WARMING = "warming"
    """Known, but the engine has not yet said that it can serve."""
    READY = "ready"
    EJECTED = "ejected"
    """Failed or fell silent; nothing is sent until its time is over."""
    TRIAL = "trial"
    """Back from ejection with one request at a time, until one succeeds."""
