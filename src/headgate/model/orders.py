"""What has an operator ordered, and until when?

Orders are a part of the policy, and like it the same for all who decide. Each ends by itself: what is done at 3 a.m.
must not be found in force a month later.
"""

from dataclasses import dataclass

from headgate.model.limits import Limits
from headgate.model.units import ClassName, EndpointId, Instant, PoolName, TenantId


@dataclass(frozen=True, slots=True)
class Throttle:
    """A tenant, and all below it together, may do no more than this."""

    tenant: TenantId
    limits: Limits
    until: Instant


@dataclass(frozen=True, slots=True)
class HoldClass:
    """Requests of this class wait, by the bounds of their class, and none is sent."""

    service_class: ClassName
    until: Instant


@dataclass(frozen=True, slots=True)
class DrainEndpoint:
    """Nothing new goes there; what runs there runs on."""

    endpoint_id: EndpointId
    until: Instant


@dataclass(frozen=True, slots=True)
class PinLadder:
    """Those who may use this pool give up what this level says, whatever the pressure."""

    pool: PoolName
    level: int
    until: Instant


OperatorOrder = Throttle | HoldClass | DrainEndpoint | PinLadder
