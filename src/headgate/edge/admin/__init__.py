"""The admin listener: status, explanations, the console and the administration API."""
