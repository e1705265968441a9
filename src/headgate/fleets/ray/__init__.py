"""Fleet of engine processes in a Ray cluster."""
