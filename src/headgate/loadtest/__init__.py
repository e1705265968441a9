"""How does a service hold up under traffic? An open-loop load test against any OpenAI-compatible address."""
