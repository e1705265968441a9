"""Where can a request run?

An endpoint is one engine address as the scheduler knows it: a name, the pool it belongs to,
and how much may be given to it at once. Its URL is the adapters' business.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headgate.model.units import EndpointId, PoolName


@dataclass(frozen=True, slots=True)
class Endpoint:
    id: EndpointId
    pool: PoolName
    in_flight_max: int
    device: str = ""
    """Endpoints that name the same device share its capacity; empty means one of its own."""
    zone: str = ""


NAME_UNRESOLVED: Final = "its host name does not resolve"
"""The detail of a probe or an attempt that failed because the name of the endpoint's host has no address."""


class EndpointTrouble(StrEnum):
    """The reason why an endpoint does not serve, from its last probe or its last failed attempt."""

    REFUSED = "refused"
    """Nothing listens at its address: the process is gone, or the address is wrong."""
    UNREACHABLE = "unreachable"
    """No connection: no route, no such host name, or connections are reset or time out."""
    SILENT = "silent"
    """It accepts connections and does not answer."""
    LOADING = "loading"
    """It answers that it cannot serve yet."""
    ERRORS = "errors"
    """It answers with errors, or its answers break off."""
    KEY_REJECTED = "key_rejected"
    """It rejects the key that the gateway sends."""
    MODEL_UNKNOWN = "model_unknown"
    """It does not serve the model that it is configured for."""


class EndpointState(StrEnum):
    WARMING = "warming"
    """Known, but the engine has not yet said that it can serve."""
    READY = "ready"
    EJECTED = "ejected"
    """Failed or fell silent; nothing is sent until its time is over."""
    TRIAL = "trial"
    """Back from ejection with one request at a time, until one succeeds."""
