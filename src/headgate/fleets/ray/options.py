"""Options of the Ray cluster that runs a fleet's processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    python: str
    """An interpreter that has Ray, of the version that the cluster has."""
    address: str = "auto"
    """Of the cluster; "local" starts one on this machine, which ends with the driver."""
    cpus: float = 1.0
    """CPUs that each endpoint takes of a node."""
    gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    """Other resources, by the names that the cluster has for them."""
