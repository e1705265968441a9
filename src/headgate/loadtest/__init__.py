"""Open-loop load test for any OpenAI-compatible server."""
