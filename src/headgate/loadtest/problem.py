"""What is wrong with what was asked for? The same as in a simulation: both read the same traces."""

from headgate.simulation.workload.problem import Problem

__all__ = ["Problem"]
