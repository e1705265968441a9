"""What do our figures come from? Benchmarks, experiments in the simulator, and their instruments.

docs/performance.md has the gateway's, docs/simulation.md the simulator's.
"""
