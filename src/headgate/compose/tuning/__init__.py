"""Tuning of scenarios: the settings that can change, variants of the file, and their simulation."""
