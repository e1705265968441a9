"""Tokens of OpenID Connect issuers: their keys, their verification and the tenants that they name."""
