"""What does an engine do with what it is given? A loop like vLLM's, pure and exact."""
