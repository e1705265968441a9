"""Tenant and key paths of the administration API.

A new key is returned once, in the response that creates it. The database stores only its hash, which is never returned.
"""

import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Final

from msgspec import Meta, field

from headgate.edge.admin.api import (
    STEP,
    AdminBody,
    AdminRoute,
    ListUnder,
    Names,
    Positive,
    TenantPath,
    utc_text,
)
from headgate.model.tenant import OTHER_TENANTS
from headgate.model.units import SECOND, Instant
from headgate.ports.directory import Actor, ChangeRejected, Directory, KeyRow, TenantRow, TenantSettings
from headgate.wire.keys import digest

OVERLAP_S_MAX: Final = 90 * 86_400
EXPIRES_S_MAX: Final = 100 * 366 * 86_400

KeyPath = Annotated[str, Meta(max_length=256, pattern=rf"^{STEP}/{STEP}/{STEP}\Z")]
ExpiresInS = Annotated[int, Meta(ge=1, le=EXPIRES_S_MAX)]


class _Terms(AdminBody, frozen=True):
    classes: Names = field(default_factory=list[str])
    models: Names = field(default_factory=list[str])
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    plan: Annotated[str, Meta(pattern=r"^(free|standard|critical)\Z")] | None = None
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    concurrency: Positive | None = None

    def terms(self) -> TenantSettings:
        limits = (self.requests_per_minute, self.tokens_per_minute, self.concurrency)
        return TenantSettings(tuple(self.classes), tuple(self.models), self.weight, self.plan, *limits)


class TenantBody(_Terms, frozen=True, kw_only=True):
    tenant: TenantPath


class TenantRef(AdminBody, frozen=True):
    tenant: TenantPath


class NewKey(_Terms, frozen=True, kw_only=True):
    key: KeyPath
    expires_in_s: ExpiresInS | None = None


class RotateKey(AdminBody, frozen=True):
    key: KeyPath
    overlap_s: Annotated[int, Meta(ge=0, le=OVERLAP_S_MAX)] = 3_600
    expires_in_s: ExpiresInS | None = None


class KeyRef(AdminBody, frozen=True):
    key: KeyPath


def tenant_routes(directory: Directory, secret: bytes) -> Mapping[bytes, AdminRoute]:
    """Returns the routes. `secret` is the key for the keyed hash."""
    tenants = _Tenants(directory, secret)
    return {
        b"/admin/v1/tenants/list": AdminRoute(ListUnder, tenants.list_tenants, writes=False),
        b"/admin/v1/tenants/create": AdminRoute(TenantBody, tenants.create_tenant, writes=True),
        b"/admin/v1/tenants/change": AdminRoute(TenantBody, tenants.change_tenant, writes=True),
        b"/admin/v1/tenants/remove": AdminRoute(TenantRef, tenants.remove_tenant, writes=True),
        b"/admin/v1/keys/list": AdminRoute(ListUnder, tenants.list_keys, writes=False),
        b"/admin/v1/keys/create": AdminRoute(NewKey, tenants.create_key, writes=True),
        b"/admin/v1/keys/rotate": AdminRoute(RotateKey, tenants.rotate_key, writes=True),
        b"/admin/v1/keys/revoke": AdminRoute(KeyRef, tenants.revoke_key, writes=True),
    }


class _Tenants:
    def __init__(self, directory: Directory, secret: bytes) -> None:
        self._directory = directory
        self._secret = secret

    async def list_tenants(self, asked: ListUnder, _: Actor) -> Mapping[str, object]:
        rows = await self._directory.tenants(below=asked.under or "", after=asked.after, limit=asked.limit)
        return {
            "data": [_tenant_json(each) for each in rows],
            "next": rows[-1].id if len(rows) == asked.limit else None,
        }

    async def create_tenant(self, asked: TenantBody, actor: Actor) -> Mapping[str, object]:
        if asked.tenant.count("/") > 1:
            raise ChangeRejected(f'"{asked.tenant}" is a key path; create it with keys/create')
        if asked.tenant == OTHER_TENANTS:
            raise ChangeRejected(
                f'metrics use the name "{asked.tenant}" for tenants without their own label; choose another'
            )
        return _tenant_json(await self._directory.create_tenant(asked.tenant, asked.terms(), actor))

    async def change_tenant(self, asked: TenantBody, actor: Actor) -> Mapping[str, object]:
        return _tenant_json(await self._directory.change_tenant(asked.tenant, asked.terms(), actor))

    async def remove_tenant(self, asked: TenantRef, actor: Actor) -> Mapping[str, object]:
        return {"tenant": asked.tenant, "removed": await self._directory.remove_tenant(asked.tenant, actor)}

    # Keys

    async def list_keys(self, asked: ListUnder, _: Actor) -> Mapping[str, object]:
        rows = await self._directory.keys(below=asked.under or "", after=asked.after, limit=asked.limit)
        tenants = list(dict.fromkeys(each.tenant for each in rows))
        return {
            "data": [_key_json(each) for each in rows],
            "next": tenants[-1] if len(tenants) == asked.limit else None,
        }

    async def create_key(self, asked: NewKey, actor: Actor) -> Mapping[str, object]:
        secret = _new_secret()
        known, expires_at = digest(self._secret, secret), _expiry(asked.expires_in_s)
        row = await self._directory.create_key(asked.key, known, asked.terms(), expires_at, actor)
        return {**_key_json(row), "secret": secret}

    async def rotate_key(self, asked: RotateKey, actor: Actor) -> Mapping[str, object]:
        secret = _new_secret()
        known, expires_at = digest(self._secret, secret), _expiry(asked.expires_in_s)
        row = await self._directory.rotate_key(asked.key, known, expires_at, asked.overlap_s, actor)
        return {**_key_json(row), "overlap_s": asked.overlap_s, "secret": secret}

    async def revoke_key(self, asked: KeyRef, actor: Actor) -> Mapping[str, object]:
        return {"key": asked.key, "revoked": await self._directory.revoke_key(asked.key, actor)}


def _new_secret() -> str:
    return "hg-" + secrets.token_urlsafe(32)


def _expiry(length_s: int | None) -> Instant | None:
    return None if length_s is None else Instant(time.time_ns() + length_s * SECOND)


def _tenant_json(row: TenantRow) -> dict[str, object]:
    terms = {name: value for name, value in asdict(row.settings).items() if value not in (None, ())}
    return {"tenant": row.id, **terms, "created_at": utc_text(row.created_at)}


def _key_json(row: KeyRow) -> dict[str, object]:
    now = time.time_ns()
    ended = row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now)
    return {
        "key": row.tenant,
        "state": "revoked" if row.revoked_at is not None else "expired" if ended else "active",
        "created_at": utc_text(row.created_at),
        "expires_at": utc_text(row.expires_at),
        "revoked_at": utc_text(row.revoked_at),
    }
