"""Several cells: which tenants belong to which cells, and how their limits are divided."""
