"""What is decided? The scheduler and its parts: pure, synchronous, deterministic."""
