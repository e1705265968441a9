"""Benchmark of a live cell: added latency, scheduler throughput and fairness (`just bench-cell`)."""
