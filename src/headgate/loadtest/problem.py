"""Error raised for invalid load test arguments or input files. The simulation also uses it, because it reads the same
traces.
"""

from headgate.simulation.workload.error import WorkloadError

__all__ = ["WorkloadError"]
