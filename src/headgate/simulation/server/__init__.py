"""The simulated engine as an HTTP server: the engine model in real time, with vLLM's API."""
