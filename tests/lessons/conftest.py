"""Which databases do the lessons of the ledger write to? One server, a database for each test."""

from tests.ledger.conftest import migrated_template, patience, shared_postgres, url

__all__ = ["migrated_template", "patience", "shared_postgres", "url"]
