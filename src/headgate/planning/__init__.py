"""Calibrates the engine simulator against measured runs."""
