"""Tenants, keys and budgets in the database."""
