"""The spool: rows that wait on disk for the database."""
