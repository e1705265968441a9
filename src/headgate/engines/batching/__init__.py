"""Batching of small requests into one call to an engine."""
