"""Wire formats: OpenAI and KServe bodies and event streams. Converts bytes to bytes without doing any I/O."""
