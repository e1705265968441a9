"""What does the simulated engine look like to its clients? The loop in real time, behind vLLM's API."""
