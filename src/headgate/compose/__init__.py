"""Builds running components from the configuration. No other package does this."""
