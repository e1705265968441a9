"""PostgreSQL storage: the ledger, the tenant and key directory, and cost reports."""
