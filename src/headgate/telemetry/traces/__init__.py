"""Traces: selects requests, converts them to spans, and sends the spans to a collector."""
