"""Options for the Ray cluster that runs a fleet's processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    python: str
    """Path of a Python interpreter with the same Ray version as the cluster."""
    address: str = "auto"
    """Address of the cluster. "local" starts a cluster on this machine, which stops when the driver exits."""
    cpus: float = 1.0
    """Number of CPUs that each endpoint reserves on its node."""
    gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    """Other resources that each endpoint reserves, by their names in the cluster."""
