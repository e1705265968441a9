"""Large request bodies, parsed in a process of their own."""
