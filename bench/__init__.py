"""What do our figures come from? Benchmarks, experiments in the simulator, and their instruments.

docs/project/performance.md has the gateway's, docs/project/simulation-accuracy.md the simulator's.
"""
