"""Endpoints from a name: a headless service or any name with several addresses."""
