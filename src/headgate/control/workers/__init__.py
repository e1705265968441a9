"""Several gateway processes that serve one port of one machine."""
