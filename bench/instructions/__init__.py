"""Counts the instructions that the gateway spends per request and per chunk, by package."""
