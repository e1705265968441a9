"""Time that requests spend in each stage."""
