"""Endpoints as the scheduler knows them.

An endpoint is one engine address in one pool. The scheduler knows its name, its pool and its maximum number of requests
in flight. If several pools have the same address, their endpoints share one engine. Only the adapters know the URL.
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
    """Device that the endpoint runs on. Endpoints on the same device share its capacity. Empty if not shared."""
    zone: str = ""
    engine: str = ""
    """Engine that the endpoint shares with endpoints of other pools. Empty if no other pool uses the engine."""
    adapters: tuple[str, ...] | None = None
    """LoRA adapters that the engine holds, by their names in the engine. None if unknown: each adapter may be there."""
    max_lora: int | None = None
    """Number of adapters that the engine computes at the same time. None if unknown."""


NAME_UNRESOLVED: Final = "the host name does not resolve"
"""Detail of a probe or an attempt that failed because the endpoint's host name could not be resolved."""


class EndpointProblem(StrEnum):
    """Why an endpoint is not ready, according to its last probe or its last failed attempt."""

    CONNECTION_REFUSED = "connection_refused"
    """No process is listening at the address: the engine has exited or the address is wrong."""
    UNREACHABLE = "unreachable"
    """The connection failed: no route, unknown host name, connection reset or connection timeout."""
    UNRESPONSIVE = "unresponsive"
    """The endpoint accepts connections but does not respond."""
    LOADING = "loading"
    """The endpoint responds that it is not ready yet."""
    ERRORS = "errors"
    """The endpoint responds with errors, or its responses are truncated."""
    KEY_REJECTED = "key_rejected"
    """The endpoint rejects the gateway's API key."""
    MODEL_UNKNOWN = "model_unknown"
    """The endpoint does not serve the model that it is configured for."""


class EndpointState(StrEnum):
    WARMING = "warming"
    """The endpoint is known, but its engine has not yet reported that it is ready."""
    READY = "ready"
    EJECTED = "ejected"
    """The endpoint failed or stopped responding. It receives no requests until its ejection time is over."""
    TRIAL = "trial"
    """The ejection time is over. The endpoint receives one request at a time until one succeeds."""
