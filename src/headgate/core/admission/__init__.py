"""Admission: the checks that run when a request arrives, and the limits and budgets that they enforce."""
