"""Error in a workload definition or its files."""


class WorkloadError(Exception):
    """The run cannot start. The message gives the reason and the fix."""
