"""Interfaces to tenants, keys, budgets and the orders of operators.

A `Directory` is a database; every process reads its changes into its own copy. It has only the keyed hashes of keys. An
`OrderBook` has orders only, in the database or in the memory of one gateway.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headgate.model.money import NanoUsd, Period
from headgate.model.units import Instant


class Unwritten(Exception):
    """What was asked cannot be: the message says why, and what to do instead."""


class Unknown(Exception):
    """There is nothing of this name."""


class DirectoryAway(Exception):
    """The database does not answer; nothing was changed, or it is not known whether."""


@dataclass(frozen=True, slots=True)
class TenantTerms:
    """What a tenant may do. What is left out is as the level above has it, and no restriction where none says."""

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
    terms: TenantTerms
    created_at: Instant
    removed_at: Instant | None = None


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One of the secrets by which a tenant is recognised."""

    tenant: str
    digest: bytes = field(repr=False)
    created_at: Instant
    expires_at: Instant | None = None
    revoked_at: Instant | None = None


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """What a tenant may spend in a period."""

    tenant: str
    period: Period
    limit: NanoUsd
    hard: bool
    created_at: Instant
    removed_at: Instant | None = None


@dataclass(frozen=True, slots=True)
class OrderRow:
    """What an operator has ordered, until when."""

    id: str
    verb: str
    target: str
    terms: Mapping[str, int]
    reason: str
    ordered_by: str
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
    """Who asks, and from where."""

    name: str
    origin: str


class OrderBook(Protocol):
    """Store of operators' orders. Each method raises `DirectoryAway` if the store is a database that is unreachable."""

    async def orders(self, *, limit: int) -> Sequence[OrderRow]:
        """The orders in force."""
        ...

    async def place_order(
        self, verb: str, target: str, terms: Mapping[str, int], actor: Actor, *, reason: str, lasts_s: int
    ) -> OrderRow: ...

    async def end_order(self, order_id: str, actor: Actor) -> OrderRow: ...

    async def audit(self, *, before: int | None, limit: int) -> Sequence[AuditRow]:
        """The entries of the audit log, newest first."""
        ...


class Directory(OrderBook, Protocol):
    """Each method raises `DirectoryAway` where the database does not answer in time."""

    async def tenants(self, *, below: str, after: str, limit: int) -> Sequence[TenantRow]: ...

    async def create_tenant(self, tenant_id: str, terms: TenantTerms, actor: Actor) -> TenantRow: ...

    async def change_tenant(self, tenant_id: str, terms: TenantTerms, actor: Actor) -> TenantRow: ...

    async def remove_tenant(self, tenant_id: str, actor: Actor) -> int:
        """With all below it and their keys; how many tenants that were."""
        ...

    async def keys(self, *, below: str, after: str, limit: int) -> Sequence[KeyRow]:
        """Of as many tenants as `limit` says, all their keys, the newest first."""
        ...

    async def create_key(
        self, tenant_id: str, digest: bytes, terms: TenantTerms, expires_at: Instant | None, actor: Actor
    ) -> KeyRow: ...

    async def rotate_key(
        self, tenant_id: str, digest: bytes, expires_at: Instant | None, overlap_s: int, actor: Actor
    ) -> KeyRow:
        """From here on the new one works; those before it go on for so long, and no longer."""
        ...

    async def revoke_key(self, tenant_id: str, actor: Actor) -> int:
        """All that the tenant is recognised by; how many those were."""
        ...

    async def budgets(self, *, below: str, after: str, limit: int) -> Sequence[BudgetRow]:
        """Of as many tenants as `limit` says, all their budgets."""
        ...

    async def set_budget(
        self, tenant_id: str, period: Period, limit: NanoUsd, actor: Actor, *, hard: bool
    ) -> BudgetRow:
        """In the place of the one that it had for this period."""
        ...

    async def remove_budget(self, tenant_id: str, period: Period, actor: Actor) -> BudgetRow: ...
