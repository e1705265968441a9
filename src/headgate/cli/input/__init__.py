"""Command-line arguments and requests to a running gateway."""
