"""Triton and TensorRT-LLM."""
