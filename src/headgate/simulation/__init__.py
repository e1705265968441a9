"""Simulates engines and fleets without GPUs, either in virtual time or as an HTTP server that behaves like vLLM."""
