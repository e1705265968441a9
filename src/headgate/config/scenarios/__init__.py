"""Scenario files for the simulator."""
