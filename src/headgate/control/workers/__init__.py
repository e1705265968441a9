"""Several gateway processes on one port of a machine."""
