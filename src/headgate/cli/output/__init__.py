"""Command output."""
