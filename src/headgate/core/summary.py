"""What is the state of things, for whoever wants to look?

A read-only picture of the scheduler at one moment, made on demand. Nothing in it can be used
to reach back into the core.
"""

from dataclasses import dataclass

from headgate.model.endpoint import EndpointState
from headgate.model.units import ClassName, EndpointId, PoolName


@dataclass(frozen=True, slots=True)
class EndpointSummary:
    id: EndpointId
    pool: PoolName
    state: EndpointState
    leaving: bool
    in_flight: int
    in_flight_max: int


@dataclass(frozen=True, slots=True)
class Summary:
    policy_hash: str
    queued: dict[ClassName, int]
    """Requests that wait, by class; every class of the policy is there."""
    requests: int
    """Requests that have not ended."""
    endpoints: tuple[EndpointSummary, ...]
