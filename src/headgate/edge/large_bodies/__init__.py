"""Large request bodies, parsed in a separate process."""
