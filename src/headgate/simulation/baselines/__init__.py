"""Baselines: simple gateways that replace the scheduler in comparisons."""
