"""Endpoints from DNS: a headless Service, or any name with several addresses."""
