"""Read log: which operator has read which tenant's data."""
