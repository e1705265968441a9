"""Dialects and protocol adapter for Triton, with or without TensorRT-LLM."""
