"""Deterministic model of a vLLM engine's scheduling loop, without a clock or I/O."""
