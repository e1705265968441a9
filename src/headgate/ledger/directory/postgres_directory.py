"""Changes tenants, keys, budgets and overrides in the database.

Each change is one transaction: it increments the directory's version, which also serializes writers, changes the rows
and adds an entry to the audit log. Values are always passed as query parameters.
"""

import json
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from headgate.ledger.connection import DatabaseConnection, DatabaseRow
from headgate.ledger.database import DATA_ERRORS, DATABASE_ERRORS, Database
from headgate.ledger.directory import budget_rows as directory_budgets
from headgate.model.money import NanoUsd, Period
from headgate.model.units import SECOND, Instant
from headgate.ports.directory import (
    Actor,
    AuditRow,
    BudgetRow,
    ChangeRejected,
    DirectoryUnavailable,
    KeyRow,
    NotFound,
    OverrideRow,
    TenantRow,
    TenantSettings,
)

DEPTH_MAX: Final = 3
"""Maximum depth of a tenant path: organisation, project, key."""
TENANTS_MAX: Final = 100_000
"""Maximum number of tenants. Every process keeps all of them in memory and iterates over them on every change."""
DIGESTS_PER_KEY_MAX: Final = 8
"""Maximum number of secrets that can be valid for one key during rotation."""
OVERRIDES_MAX: Final = 200

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SETTINGS_COLUMNS: Final = "classes, models, weight, plan, requests_per_minute, tokens_per_minute, concurrency"
_TENANT_COLUMNS: Final = f"id, {_SETTINGS_COLUMNS}, created_at, removed_at"
_KEY_COLUMNS: Final = "digest, tenant, created_at, expires_at, revoked_at"
_OVERRIDE_COLUMNS: Final = "id, verb, target, parameters, reason, created_by, created_at, expires_at, ended_at"


class PostgresDirectory:
    def __init__(
        self, database: Database, is_in_file: Callable[[str], bool] = lambda _: False, *, tenants_max: int = TENANTS_MAX
    ) -> None:
        """`is_in_file` returns whether the configuration file defines the tenant.

        The file takes precedence over the database.
        """
        self._database = database
        self._is_in_file = is_in_file
        self._tenants_max = tenants_max

    # Tenants

    async def tenants(self, *, below: str, after: str, limit: int) -> Sequence[TenantRow]:
        async with self._reading() as link:
            rows = await link.fetch(
                f"select {_TENANT_COLUMNS} from headgate.tenants where removed_at is null and id > $1"  # noqa: S608
                " and ($2 = '' or id = $2 or starts_with(id, $2 || '/')) order by id limit $3",
                after,
                below,
                limit,
            )
        return [tenant_row(row) for row in rows]

    async def create_tenant(self, tenant_id: str, terms: TenantSettings, actor: Actor) -> TenantRow:
        async with self._writing() as (link, version):
            row = await _insert_tenant(link, tenant_id, terms, version, self._tenants_max)
            await _write_audit(
                link, actor, "tenant.create", tenant_id, before=None, after=_audit_settings(row.settings)
            )
        return row

    async def change_tenant(self, tenant_id: str, terms: TenantSettings, actor: Actor) -> TenantRow:
        """Replaces all terms of the tenant."""
        async with self._writing() as (link, version):
            before = await _tenant(link, tenant_id)
            row = await link.fetchrow(
                "update headgate.tenants set classes = $2, models = $3, weight = $4, plan = $5,"  # noqa: S608
                " requests_per_minute = $6, tokens_per_minute = $7, concurrency = $8, changed_version = $9"
                f" where id = $1 returning {_TENANT_COLUMNS}",
                tenant_id,
                *_settings_values(terms),
                version,
            )
            assert row is not None
            after = tenant_row(row)
            await _write_audit(
                link,
                actor,
                "tenant.change",
                tenant_id,
                before=_audit_settings(before.settings),
                after=_audit_settings(after.settings),
            )
        return after

    async def remove_tenant(self, tenant_id: str, actor: Actor) -> int:
        async with self._writing() as (link, version):
            before = await _tenant(link, tenant_id)
            rows = await link.fetch(
                "update headgate.tenants set removed_at = now(), changed_version = $2"
                " where removed_at is null and (id = $1 or starts_with(id, $1 || '/')) returning id",
                tenant_id,
                version,
            )
            removed: list[str] = [row["id"] for row in rows]
            await link.execute(
                "update headgate.keys set revoked_at = now(), changed_version = $2"
                " where tenant = any($1::text[]) and revoked_at is null",
                removed,
                version,
            )
            await directory_budgets.remove_budgets(link, removed, list(Period), version)
            await _write_audit(
                link,
                actor,
                "tenant.remove",
                tenant_id,
                before=_audit_settings(before.settings),
                after={"removed": len(removed)},
            )
        return len(removed)

    # Keys

    async def keys(self, *, below: str, after: str, limit: int) -> Sequence[KeyRow]:
        async with self._reading() as link:
            rows = await link.fetch(
                f"select {_KEY_COLUMNS} from headgate.keys where tenant in (select id from headgate.tenants"  # noqa: S608
                " where id > $1 and ($2 = '' or id = $2 or starts_with(id, $2 || '/'))"
                " and exists (select from headgate.keys where tenant = id) order by id limit $3)"
                " order by tenant, created_at desc",
                after,
                below,
                limit,
            )
        return [key_row(row) for row in rows]

    async def create_key(
        self, tenant_id: str, digest: bytes, terms: TenantSettings, expires_at: Instant | None, actor: Actor
    ) -> KeyRow:
        if tenant_id.count("/") != DEPTH_MAX - 1:
            raise ChangeRejected(f'"{tenant_id}" is not a key path; use ORGANISATION/PROJECT/KEY')
        async with self._writing() as (link, version):
            await _insert_tenant(link, tenant_id, terms, version, self._tenants_max)
            row = await _insert_key(link, tenant_id, digest, expires_at, version)
            told = {**_audit_settings(terms), "expires_at": _audit_time(expires_at)}
            await _write_audit(link, actor, "key.create", tenant_id, before=None, after=told)
        return row

    async def rotate_key(
        self, tenant_id: str, digest: bytes, expires_at: Instant | None, overlap_s: int, actor: Actor
    ) -> KeyRow:
        async with self._writing() as (link, version):
            await _tenant(link, tenant_id)
            working = await link.fetchval(
                "select count(*) from headgate.keys where tenant = $1 and revoked_at is null"
                " and (expires_at is null or expires_at > now())",
                tenant_id,
            )
            if working >= DIGESTS_PER_KEY_MAX:
                raise ChangeRejected(
                    f'"{tenant_id}" already has {working} valid secrets; wait until one expires, or revoke the key'
                )
            await link.execute(
                "update headgate.keys set expires_at = least(expires_at, now() + $2), changed_version = $3"
                " where tenant = $1 and revoked_at is null and (expires_at is null or expires_at > now())",
                tenant_id,
                timedelta(seconds=overlap_s),
                version,
            )
            row = await _insert_key(link, tenant_id, digest, expires_at, version)
            told: dict[str, object] = {
                "keys": working + 1,
                "overlap_s": overlap_s,
                "expires_at": _audit_time(expires_at),
            }
            await _write_audit(link, actor, "key.rotate", tenant_id, before={"keys": working}, after=told)
        return row

    async def revoke_key(self, tenant_id: str, actor: Actor) -> int:
        async with self._writing() as (link, version):
            await _tenant(link, tenant_id)
            rows = await link.fetch(
                "update headgate.keys set revoked_at = now(), changed_version = $2"
                " where tenant = $1 and revoked_at is null returning tenant",
                tenant_id,
                version,
            )
            await _write_audit(link, actor, "key.revoke", tenant_id, before={"keys": len(rows)}, after={"keys": 0})
        return len(rows)

    # Budgets

    async def budgets(self, *, below: str, after: str, limit: int) -> Sequence[BudgetRow]:
        async with self._reading() as link:
            return await directory_budgets.list_budgets(link, below=below, after=after, limit=limit)

    async def set_budget(
        self, tenant_id: str, period: Period, limit: NanoUsd, actor: Actor, *, hard: bool
    ) -> BudgetRow:
        if self._is_in_file(tenant_id):
            where = f"tenants.{tenant_id}.budgets"
            raise ChangeRejected(
                f'"{tenant_id}" is defined in the configuration file; set its budget there, in {where}'
            )
        async with self._writing() as (link, version):
            await _tenant(link, tenant_id)
            before = await directory_budgets.get_budget(link, tenant_id, period)
            row = await directory_budgets.upsert_budget(link, tenant_id, period, limit, version, hard=hard)
            told_before = None if before is None else directory_budgets.audit_value(before)
            after = directory_budgets.audit_value(row)
            await _write_audit(link, actor, f"budget.set.{period}", tenant_id, before=told_before, after=after)
        return row

    async def remove_budget(self, tenant_id: str, period: Period, actor: Actor) -> BudgetRow:
        async with self._writing() as (link, version):
            await _tenant(link, tenant_id)
            before = await directory_budgets.get_budget(link, tenant_id, period)
            if before is None:
                raise NotFound(f'"{tenant_id}" has no budget per {period}; run `headgate budgets list`')
            await directory_budgets.remove_budgets(link, [tenant_id], [period], version)
            told = directory_budgets.audit_value(before)
            await _write_audit(link, actor, f"budget.remove.{period}", tenant_id, before=told, after=None)
        return before

    # Overrides

    async def overrides(self, *, limit: int) -> Sequence[OverrideRow]:
        async with self._reading() as link:
            rows = await link.fetch(
                f"select {_OVERRIDE_COLUMNS} from headgate.overrides where ended_at is null and expires_at > now()"  # noqa: S608
                " order by created_at limit $1",
                limit,
            )
        return [override_row(row) for row in rows]

    async def create_override(
        self, verb: str, target: str, terms: Mapping[str, int], actor: Actor, *, reason: str, duration_s: int
    ) -> OverrideRow:
        async with self._writing() as (link, version):
            in_force = "select count(*) from headgate.overrides where ended_at is null and expires_at > now()"
            if (count := await link.fetchval(in_force)) >= OVERRIDES_MAX:
                raise ChangeRejected(f"{count} overrides are active, which is the limit; end one first")
            row = await link.fetchrow(
                "insert into headgate.overrides"  # noqa: S608
                " (id, verb, target, parameters, reason, created_by, expires_at, changed_version)"
                f" values ($1, $2, $3, $4, $5, $6, now() + $7, $8) returning {_OVERRIDE_COLUMNS}",
                f"ovr_{secrets.token_hex(6)}",
                verb,
                target,
                json.dumps(dict(terms)),
                reason,
                actor.name,
                timedelta(seconds=duration_s),
                version,
            )
            assert row is not None
            order = override_row(row)
            await _write_audit(link, actor, f"override.{verb}", target, before=None, after=_audit_override(order))
        return order

    async def end_override(self, order_id: str, actor: Actor) -> OverrideRow:
        async with self._writing() as (link, version):
            row = await link.fetchrow(
                "update headgate.overrides set ended_at = now(), changed_version = $2"  # noqa: S608
                f" where id = $1 and ended_at is null and expires_at > now() returning {_OVERRIDE_COLUMNS}",
                order_id,
                version,
            )
            if row is None:
                raise NotFound(f'no active override "{order_id}"; run `headgate operate list`')
            order = override_row(row)
            await _write_audit(link, actor, "override.end", order_id, before=_audit_override(order), after=None)
        return order

    # Audit log

    async def add_audit_entry(
        self, actor: Actor, action: str, target: str, *, after: Mapping[str, object] | None
    ) -> None:
        async with self._writing() as (link, _):
            await _write_audit(link, actor, action, target, before=None, after=after)

    async def audit(self, *, before: int | None, limit: int) -> Sequence[AuditRow]:
        async with self._reading() as link:
            rows = await link.fetch(
                "select number, at, actor, origin, action, target, before, after from headgate.audit"
                " where $1::bigint is null or number < $1 order by number desc limit $2",
                before,
                limit,
            )
        return [_audit_row(row) for row in rows]

    @asynccontextmanager
    async def _reading(self) -> AsyncGenerator[DatabaseConnection]:
        try:
            async with self._database.acquire() as link:
                yield link
        except DATA_ERRORS as error:
            raise ChangeRejected(
                f"the database rejects this value: {self._database.describe(error)}; correct it"
            ) from error
        except DATABASE_ERRORS as error:
            raise DirectoryUnavailable(self._database.describe(error)) from error

    @asynccontextmanager
    async def _writing(self) -> AsyncGenerator[tuple[DatabaseConnection, int]]:
        """Opens a transaction and yields it along with its version number."""
        async with self._reading() as link, link.transaction():
            taken = "update headgate.directory_state set version = version + 1 returning version"
            yield link, await link.fetchval(taken)


async def _tenant(link: DatabaseConnection, tenant_id: str) -> TenantRow:
    row = await link.fetchrow(
        f"select {_TENANT_COLUMNS} from headgate.tenants where id = $1 and removed_at is null",  # noqa: S608
        tenant_id,
    )
    if row is None:
        raise NotFound(f'tenant "{tenant_id}" does not exist in the database; run `headgate tenants list`')
    return tenant_row(row)


async def _insert_tenant(
    link: DatabaseConnection, tenant_id: str, terms: TenantSettings, version: int, tenants_max: int
) -> TenantRow:
    above, slash, _ = tenant_id.rpartition("/")
    if tenant_id.count("/") >= DEPTH_MAX:
        raise ChangeRejected(f'"{tenant_id}" has more than {DEPTH_MAX} levels; use ORGANISATION/PROJECT/KEY')
    if slash:
        try:
            await _tenant(link, above)
        except NotFound:
            raise ChangeRejected(f'"{above}" does not exist; create it first') from None
    if await link.fetchval("select count(*) from headgate.tenants where removed_at is null") >= tenants_max:
        raise ChangeRejected(f"the limit of {tenants_max} tenants is reached; remove some")
    row = await link.fetchrow(
        f"insert into headgate.tenants (id, {_SETTINGS_COLUMNS}, changed_version)"  # noqa: S608
        " values ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
        # A removed tenant's name may be reused. The new tenant inherits nothing.
        " on conflict (id) do update set classes = excluded.classes, models = excluded.models,"
        " weight = excluded.weight, plan = excluded.plan, requests_per_minute = excluded.requests_per_minute,"
        " tokens_per_minute = excluded.tokens_per_minute, concurrency = excluded.concurrency, removed_at = null,"
        " created_at = now(), changed_version = excluded.changed_version"
        f" where headgate.tenants.removed_at is not null returning {_TENANT_COLUMNS}",
        tenant_id,
        *_settings_values(terms),
        version,
    )
    if row is None:
        raise ChangeRejected(f'"{tenant_id}" already exists; choose another name, or change or rotate the existing one')
    return tenant_row(row)


async def _insert_key(
    link: DatabaseConnection, tenant_id: str, digest: bytes, expires_at: Instant | None, version: int
) -> KeyRow:
    row = await link.fetchrow(
        "insert into headgate.keys (digest, tenant, expires_at, changed_version)"  # noqa: S608
        f" values ($1, $2, $3, $4) returning {_KEY_COLUMNS}",
        digest,
        tenant_id,
        None if expires_at is None else _to_datetime(expires_at),
        version,
    )
    assert row is not None
    return key_row(row)


async def _write_audit(
    link: DatabaseConnection,
    actor: Actor,
    action: str,
    target: str,
    *,
    before: Mapping[str, object] | None,
    after: Mapping[str, object] | None,
) -> None:
    await link.execute(
        "insert into headgate.audit (actor, origin, action, target, before, after) values ($1, $2, $3, $4, $5, $6)",
        actor.name,
        actor.origin,
        action,
        target,
        None if before is None else json.dumps(before),
        None if after is None else json.dumps(after),
    )


# Conversion from and to rows


def tenant_row(row: DatabaseRow) -> TenantRow:
    terms = TenantSettings(
        tuple(row["classes"]),
        tuple(row["models"]),
        row["weight"],
        row["plan"],
        row["requests_per_minute"],
        row["tokens_per_minute"],
        row["concurrency"],
    )
    return TenantRow(row["id"], terms, _to_instant(row["created_at"]), _to_instant_or_none(row["removed_at"]))


def key_row(row: DatabaseRow) -> KeyRow:
    times = (
        _to_instant(row["created_at"]),
        _to_instant_or_none(row["expires_at"]),
        _to_instant_or_none(row["revoked_at"]),
    )
    return KeyRow(row["tenant"], row["digest"], *times)


def override_row(row: DatabaseRow) -> OverrideRow:
    times = (_to_instant(row["created_at"]), _to_instant(row["expires_at"]), _to_instant_or_none(row["ended_at"]))
    terms: dict[str, int] = json.loads(row["parameters"])
    return OverrideRow(row["id"], row["verb"], row["target"], terms, row["reason"], row["created_by"], *times)


def _audit_row(row: DatabaseRow) -> AuditRow:
    changes = [None if row[each] is None else json.loads(row[each]) for each in ("before", "after")]
    return AuditRow(
        row["number"], _to_instant(row["at"]), row["actor"], row["origin"], row["action"], row["target"], *changes
    )


def _settings_values(terms: TenantSettings) -> tuple[Any, ...]:
    limits = (terms.requests_per_minute, terms.tokens_per_minute, terms.concurrency)
    return list(terms.classes), list(terms.models), terms.weight, terms.plan, *limits


def _audit_settings(terms: TenantSettings) -> dict[str, object]:
    """The terms that are set, for the audit log."""
    return {name: value for name, value in asdict(terms).items() if value not in (None, ())}


def _audit_override(order: OverrideRow) -> dict[str, object]:
    expires_at = _audit_time(order.expires_at)
    return {"verb": order.verb, "target": order.target, "terms": dict(order.parameters), "expires_at": expires_at}


def _audit_time(at: Instant | None) -> str | None:
    """The time in ISO 8601, for the audit log."""
    return None if at is None else f"{_to_datetime(at):%Y-%m-%dT%H:%M:%SZ}"


def _to_instant(moment: datetime) -> Instant:
    since = moment - _EPOCH
    return Instant((since.days * 86_400 + since.seconds) * SECOND + since.microseconds * 1_000)


def _to_instant_or_none(moment: datetime | None) -> Instant | None:
    return None if moment is None else _to_instant(moment)


def _to_datetime(at: Instant) -> datetime:
    return _EPOCH + timedelta(microseconds=at // 1_000)
