"""A whole cell under faults in virtual time, driven by one seed."""
