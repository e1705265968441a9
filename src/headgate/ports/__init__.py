"""What do the parts promise each other? Protocols and the values they exchange; no code that runs."""
