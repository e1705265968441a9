"""Tenants, keys, budgets and overrides in the database."""
