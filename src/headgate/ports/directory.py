"""Interfaces to tenants, keys, budgets and operator overrides.

A `Directory` is a tenant, key and budget database. It stores keys only as keyed hashes. Each process keeps a replica
and applies changes to it. An `OverrideStore` contains only overrides, in the database or in the memory of one gateway.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headgate.model.money import NanoUsd, Period
from headgate.model.units import Instant


class ChangeRejected(Exception):
    """The change is not possible. The message gives the reason and an alternative."""


class NotFound(Exception):
    """No object has this name."""


class DirectoryUnavailable(Exception):
    """The database is not responding. The change was not made, or its result is unknown."""


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """Settings of a tenant. Omitted settings are inherited from the level above, or mean no restriction."""

    classes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    weight: int | None = None
    plan: str | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class TenantRow:
    id: str
    settings: TenantSettings
    created_at: Instant
    removed_at: Instant | None = None


@dataclass(frozen=True, slots=True)
class KeyRow:
    """Key of a tenant, stored as a hash."""

    tenant: str
    digest: bytes = field(repr=False)
    created_at: Instant
    expires_at: Instant | None = None
    revoked_at: Instant | None = None


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """Spending limit of a tenant for a period."""

    tenant: str
    period: Period
    limit: NanoUsd
    hard: bool
    created_at: Instant
    removed_at: Instant | None = None


@dataclass(frozen=True, slots=True)
class OverrideRow:
    """Operator override and its expiry time."""

    id: str
    verb: str
    target: str
    parameters: Mapping[str, int]
    reason: str
    created_by: str
    created_at: Instant
    expires_at: Instant
    ended_at: Instant | None = None


@dataclass(frozen=True, slots=True)
class AuditRow:
    number: int
    at: Instant
    actor: str
    origin: str
    action: str
    target: str
    before: Mapping[str, object] | None
    after: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class Actor:
    """Who made a change, and from where."""

    name: str
    origin: str


class OverrideStore(Protocol):
    """Store of operator overrides. Each method raises `DirectoryUnavailable` if it needs an unreachable database."""

    async def overrides(self, *, limit: int) -> Sequence[OverrideRow]:
        """Returns the active overrides."""
        ...

    async def create_override(
        self, verb: str, target: str, terms: Mapping[str, int], actor: Actor, *, reason: str, duration_s: int
    ) -> OverrideRow: ...

    async def end_override(self, order_id: str, actor: Actor) -> OverrideRow: ...

    async def add_audit_entry(
        self, actor: Actor, action: str, target: str, *, after: Mapping[str, object] | None
    ) -> None:
        """Records an action that changes neither an override nor the directory."""
        ...

    async def audit(self, *, before: int | None, limit: int) -> Sequence[AuditRow]:
        """Returns entries from the audit log, newest first."""
        ...


class Directory(OverrideStore, Protocol):
    """Tenants, keys and budgets. Each method raises `DirectoryUnavailable` if the database does not respond in time."""

    async def tenants(self, *, below: str, after: str, limit: int) -> Sequence[TenantRow]: ...

    async def create_tenant(self, tenant_id: str, terms: TenantSettings, actor: Actor) -> TenantRow: ...

    async def change_tenant(self, tenant_id: str, terms: TenantSettings, actor: Actor) -> TenantRow: ...

    async def remove_tenant(self, tenant_id: str, actor: Actor) -> int:
        """Removes a tenant, all tenants below it and their keys. Returns the number of tenants removed."""
        ...

    async def keys(self, *, below: str, after: str, limit: int) -> Sequence[KeyRow]:
        """Returns all keys of up to `limit` tenants, newest first."""
        ...

    async def create_key(
        self, tenant_id: str, digest: bytes, terms: TenantSettings, expires_at: Instant | None, actor: Actor
    ) -> KeyRow: ...

    async def rotate_key(
        self, tenant_id: str, digest: bytes, expires_at: Instant | None, overlap_s: int, actor: Actor
    ) -> KeyRow:
        """Adds a key. Earlier keys remain valid for `overlap_s` more seconds."""
        ...

    async def revoke_key(self, tenant_id: str, actor: Actor) -> int:
        """Revokes all keys of a tenant. Returns their number."""
        ...

    async def budgets(self, *, below: str, after: str, limit: int) -> Sequence[BudgetRow]:
        """Returns all budgets of up to `limit` tenants."""
        ...

    async def set_budget(
        self, tenant_id: str, period: Period, limit: NanoUsd, actor: Actor, *, hard: bool
    ) -> BudgetRow:
        """Sets the budget for a period, replacing an earlier one."""
        ...

    async def remove_budget(self, tenant_id: str, period: Period, actor: Actor) -> BudgetRow: ...
