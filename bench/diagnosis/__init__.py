"""Measures the accuracy and speed of the diagnosis with simulated incidents and healthy runs."""
