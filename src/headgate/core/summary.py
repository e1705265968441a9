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
class GivenUp:
    """What is given up at a pool under overload; of those who may use it, the most."""

    pool: PoolName
    level: int
    """Of the ladder."""
    shed_ppm: int
    """Of what arrives, so many in a million are refused by rank."""


@dataclass(frozen=True, slots=True)
class Summary:
    policy_hash: str
    queued: dict[ClassName, int]
    """Requests that wait, by class; every class of the policy is there."""
    requests: int
    """Requests that have not ended."""
    endpoints: tuple[EndpointSummary, ...]
    given_up: tuple[GivenUp, ...] = ()
    """Pools at which anybody has asked to be served, also those where nothing is given up."""
    prefix_hashes: tuple[tuple[PoolName, int], ...] = ()
    """Pools of which it is known who holds which beginnings, and how many hashes that takes."""
