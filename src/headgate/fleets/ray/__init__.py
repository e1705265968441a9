"""A fleet of actors in a Ray cluster."""
