"""Database fixtures for the ledger tests: one server, and one database per test."""

from tests.ledger.conftest import migrated_template, patience, shared_postgres, url

__all__ = ["migrated_template", "patience", "shared_postgres", "url"]
