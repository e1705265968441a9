"""The spool: ledger rows on disk, waiting to be written to the database."""
