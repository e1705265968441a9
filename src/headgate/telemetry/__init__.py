"""Observability: metrics, logs, traces and request records."""
