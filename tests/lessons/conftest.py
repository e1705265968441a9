"""Which databases do the lessons of the ledger write to? One server, a database for each test."""

from tests.ledger.conftest import shared_postgres, url

__all__ = ["shared_postgres", "url"]
