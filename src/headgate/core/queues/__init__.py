"""Queues: priority bands for classes, fair queueing among tenants, and the order of each tenant's requests."""
