"""Who comes in, and what do they get back? The door: HTTP on one side, tickets and orders on the other."""
