"""Cost reports made from the ledger's rows."""
