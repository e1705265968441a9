"""Tests for Headgate's defences. docs/operations/security.md lists each defence and its test."""
