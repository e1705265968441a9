"""Cost reports from the ledger."""
