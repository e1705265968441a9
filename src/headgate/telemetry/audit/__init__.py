"""Log of operators' reads of data that belongs to tenants."""
