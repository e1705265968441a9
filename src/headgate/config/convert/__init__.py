"""Converts the configurations of other gateways and proxies. One reader per format, one draft, one writer."""
