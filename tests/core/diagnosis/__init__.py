"""Tests for the diagnosis."""
