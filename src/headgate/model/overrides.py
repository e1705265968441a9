"""Operator overrides and their expiry times.

Overrides are part of the policy, so every scheduler applies the same ones. Each override expires, so that an emergency
measure cannot remain in force unnoticed.
"""

from dataclasses import dataclass

from headgate.model.limits import Limits
from headgate.model.units import ClassName, EndpointId, Instant, ModelName, PoolName, TenantId


@dataclass(frozen=True, slots=True)
class Throttle:
    """Limits a tenant together with all tenants below it."""

    tenant: TenantId
    limits: Limits
    until: Instant


@dataclass(frozen=True, slots=True)
class HoldClass:
    """Keeps requests of a class queued. Their queue limits still apply."""

    service_class: ClassName
    until: Instant


@dataclass(frozen=True, slots=True)
class DrainEndpoint:
    """Sends no new requests to an endpoint."""

    endpoint_id: EndpointId
    until: Instant
    interrupt: bool = False
    """Whether the attempts that are running there when the override starts are aborted. Otherwise they continue."""


@dataclass(frozen=True, slots=True)
class PinDegradation:
    """Sets the degradation level of a pool's classes regardless of pressure."""

    pool: PoolName
    level: int
    until: Instant


@dataclass(frozen=True, slots=True)
class SetRouteWeights:
    """Replaces the weights of some routes of a model. The other routes keep theirs."""

    model: ModelName
    weights: tuple[tuple[str, int], ...]
    """Names of routes, each with its weight."""
    until: Instant


@dataclass(frozen=True, slots=True)
class MinimumEndpoints:
    """Keeps at least this many endpoints in an autoscaled pool, up to its maximum."""

    pool: PoolName
    endpoints: int
    until: Instant


@dataclass(frozen=True, slots=True)
class SetSetting:
    """Replaces the value of one setting while the configuration has `before`.

    If the configuration changes, its new value applies. Values are in the core's units (`live_settings.py`).
    """

    setting: str
    """Path of the setting in the configuration."""
    before: int
    value: int
    until: Instant


OperatorOverride = (
    Throttle | HoldClass | DrainEndpoint | PinDegradation | SetRouteWeights | MinimumEndpoints | SetSetting
)
