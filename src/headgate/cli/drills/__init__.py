"""Drills: reversible incidents in a running fleet, and their measurement."""
