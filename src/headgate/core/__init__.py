"""The scheduler and its policies: pure, synchronous and deterministic."""
