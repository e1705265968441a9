"""Simulation of a complete cell under faults, in virtual time, driven by one seed."""
