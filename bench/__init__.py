"""Benchmarks, simulator experiments and the tools they use.

docs/project/performance.md documents the gateway's results, and docs/project/simulation-accuracy.md the simulator's.
"""
