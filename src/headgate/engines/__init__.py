"""Engine clients: HTTP connections, one dialect per kind of engine, and the readiness watch."""
