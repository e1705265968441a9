"""The KServe protocol."""
