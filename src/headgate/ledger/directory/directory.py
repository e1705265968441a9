"""How do tenants, keys, budgets and orders come into the database?

Each change is one transaction: it takes the next number of the directory, which also keeps two writers apart, changes
the rows, and adds a line to the audit log. Values travel beside the SQL, never in it.
"""

import json
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from headgate.ledger.database import FAILURES, UNFIT, Database
from headgate.ledger.directory import budgets as directory_budgets
from headgate.ledger.link import Link, Row
from headgate.model.money import NanoUsd, Period
from headgate.model.units import SECOND, Instant
from headgate.ports.directory import (
    Actor,
    AuditRow,
    BudgetRow,
    DirectoryAway,
    KeyRow,
    OrderRow,
    TenantRow,
    TenantTerms,
    Unknown,
    Unwritten,
)

DEPTH_MAX: Final = 3
"""Organisation, project, key."""
TENANTS_MAX: Final = 100_000
"""Every process keeps all of them in memory, and a change takes longer the more there are."""
DIGESTS_PER_KEY_MAX: Final = 8
"""That work at the same time, while keys are rotated."""
ORDERS_MAX: Final = 200

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TERMS: Final = "classes, models, weight, plan, requests_per_minute, tokens_per_minute, concurrency"
_TENANT: Final = f"id, {_TERMS}, created_at, removed_at"
_KEY: Final = "digest, tenant, created_at, expires_at, revoked_at"
_ORDER: Final = "id, verb, target, terms, reason, ordered_by, created_at, expires_at, ended_at"


class PostgresDirectory:
    def __init__(
        self, database: Database, filed: Callable[[str], bool] = lambda _: False, *, tenants_max: int = TENANTS_MAX
    ) -> None:
        """`filed` says whether the file has a tenant of this name, which counts instead of the database's."""
        self._database = database
        self._filed = filed
        self._tenants_max = tenants_max

    # Tenants

    async def tenants(self, *, below: str, after: str, limit: int) -> Sequence[TenantRow]:
        async with self._reading() as link:
            rows = await link.fetch(
                f"select {_TENANT} from headgate.tenants where removed_at is null and id > $1"  # noqa: S608
                " and ($2 = '' or id = $2 or starts_with(id, $2 || '/')) order by id limit $3",
                after,
                below,
                limit,
            )
        return [tenant_row(row) for row in rows]

    async def create_tenant(self, tenant_id: str, terms: TenantTerms, actor: Actor) -> TenantRow:
        async with self._writing() as (link, version):
            row = await _insert_tenant(link, tenant_id, terms, version, self._tenants_max)
            await _note(link, actor, "tenant.create", tenant_id, before=None, after=_told(row.terms))
        return row

    async def change_tenant(self, tenant_id: str, terms: TenantTerms, actor: Actor) -> TenantRow:
        """All its terms are these from here on."""
        async with self._writing() as (link, version):
            before = await _tenant(link, tenant_id)
            row = await link.fetchrow(
                "update headgate.tenants set classes = $2, models = $3, weight = $4, plan = $5,"  # noqa: S608
                " requests_per_minute = $6, tokens_per_minute = $7, concurrency = $8, changed = $9"
                f" where id = $1 returning {_TENANT}",
                tenant_id,
                *_values(terms),
                version,
            )
            assert row is not None
            after = tenant_row(row)
            await _note(link, actor, "tenant.change", tenant_id, before=_told(before.terms), after=_told(after.terms))
        return after

    async def remove_tenant(self, tenant_id: str, actor: Actor) -> int:
        async with self._writing() as (link, version):
            before = await _tenant(link, tenant_id)
            rows = await link.fetch(
                "update headgate.tenants set removed_at = now(), changed = $2"
                " where removed_at is null and (id = $1 or starts_with(id, $1 || '/')) returning id",
                tenant_id,
                version,
            )
            removed: list[str] = [row["id"] for row in rows]
            await link.execute(
                "update headgate.keys set revoked_at = now(), changed = $2"
                " where tenant = any($1::text[]) and revoked_at is null",
                removed,
                version,
            )
            await directory_budgets.taken_away(link, removed, list(Period), version)
            await _note(
                link, actor, "tenant.remove", tenant_id, before=_told(before.terms), after={"removed": len(removed)}
            )
        return len(removed)

    # Keys

    async def keys(self, *, below: str, after: str, limit: int) -> Sequence[KeyRow]:
        async with self._reading() as link:
            rows = await link.fetch(
                f"select {_KEY} from headgate.keys where tenant in (select id from headgate.tenants"  # noqa: S608
                " where id > $1 and ($2 = '' or id = $2 or starts_with(id, $2 || '/'))"
                " and exists (select from headgate.keys where tenant = id) order by id limit $3)"
                " order by tenant, created_at desc",
                after,
                below,
                limit,
            )
        return [key_row(row) for row in rows]

    async def create_key(
        self, tenant_id: str, digest: bytes, terms: TenantTerms, expires_at: Instant | None, actor: Actor
    ) -> KeyRow:
        if tenant_id.count("/") != DEPTH_MAX - 1:
            raise Unwritten(f'a key is called ORGANISATION/PROJECT/KEY, and "{tenant_id}" is not; name all three')
        async with self._writing() as (link, version):
            await _insert_tenant(link, tenant_id, terms, version, self._tenants_max)
            row = await _insert_key(link, tenant_id, digest, expires_at, version)
            told = {**_told(terms), "expires_at": _told_at(expires_at)}
            await _note(link, actor, "key.create", tenant_id, before=None, after=told)
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
                raise Unwritten(
                    f'"{tenant_id}" has {working} keys that still work; wait, or revoke it and make it anew'
                )
            await link.execute(
                "update headgate.keys set expires_at = least(expires_at, now() + $2), changed = $3"
                " where tenant = $1 and revoked_at is null and (expires_at is null or expires_at > now())",
                tenant_id,
                timedelta(seconds=overlap_s),
                version,
            )
            row = await _insert_key(link, tenant_id, digest, expires_at, version)
            told: dict[str, object] = {"keys": working + 1, "overlap_s": overlap_s, "expires_at": _told_at(expires_at)}
            await _note(link, actor, "key.rotate", tenant_id, before={"keys": working}, after=told)
        return row

    async def revoke_key(self, tenant_id: str, actor: Actor) -> int:
        async with self._writing() as (link, version):
            await _tenant(link, tenant_id)
            rows = await link.fetch(
                "update headgate.keys set revoked_at = now(), changed = $2"
                " where tenant = $1 and revoked_at is null returning tenant",
                tenant_id,
                version,
            )
            await _note(link, actor, "key.revoke", tenant_id, before={"keys": len(rows)}, after={"keys": 0})
        return len(rows)

    # Budgets

    async def budgets(self, *, below: str, after: str, limit: int) -> Sequence[BudgetRow]:
        async with self._reading() as link:
            return await directory_budgets.listed(link, below=below, after=after, limit=limit)

    async def set_budget(
        self, tenant_id: str, period: Period, limit: NanoUsd, actor: Actor, *, hard: bool
    ) -> BudgetRow:
        if self._filed(tenant_id):
            where = f"tenants.{tenant_id}.budgets"
            raise Unwritten(f'"{tenant_id}" stands in the file, and so does its budget; write it there, as {where}')
        async with self._writing() as (link, version):
            await _tenant(link, tenant_id)
            before = await directory_budgets.found(link, tenant_id, period)
            row = await directory_budgets.put(link, tenant_id, period, limit, version, hard=hard)
            told_before = None if before is None else directory_budgets.told(before)
            after = directory_budgets.told(row)
            await _note(link, actor, f"budget.set.{period}", tenant_id, before=told_before, after=after)
        return row

    async def remove_budget(self, tenant_id: str, period: Period, actor: Actor) -> BudgetRow:
        async with self._writing() as (link, version):
            await _tenant(link, tenant_id)
            before = await directory_budgets.found(link, tenant_id, period)
            if before is None:
                raise Unknown(f'"{tenant_id}" has no budget by the {period}; `headgate budgets list` shows what it has')
            await directory_budgets.taken_away(link, [tenant_id], [period], version)
            told = directory_budgets.told(before)
            await _note(link, actor, f"budget.remove.{period}", tenant_id, before=told, after=None)
        return before

    # Orders

    async def orders(self, *, limit: int) -> Sequence[OrderRow]:
        async with self._reading() as link:
            rows = await link.fetch(
                f"select {_ORDER} from headgate.orders where ended_at is null and expires_at > now()"  # noqa: S608
                " order by created_at limit $1",
                limit,
            )
        return [order_row(row) for row in rows]

    async def place_order(
        self, verb: str, target: str, terms: Mapping[str, int], actor: Actor, *, reason: str, lasts_s: int
    ) -> OrderRow:
        async with self._writing() as (link, version):
            in_force = "select count(*) from headgate.orders where ended_at is null and expires_at > now()"
            if (count := await link.fetchval(in_force)) >= ORDERS_MAX:
                raise Unwritten(f"{count} orders are in force, as many as there may be; end one first")
            row = await link.fetchrow(
                "insert into headgate.orders (id, verb, target, terms, reason, ordered_by, expires_at, changed)"  # noqa: S608
                f" values ($1, $2, $3, $4, $5, $6, now() + $7, $8) returning {_ORDER}",
                f"ord_{secrets.token_hex(6)}",
                verb,
                target,
                json.dumps(dict(terms)),
                reason,
                actor.name,
                timedelta(seconds=lasts_s),
                version,
            )
            assert row is not None
            order = order_row(row)
            await _note(link, actor, f"order.{verb}", target, before=None, after=_told_order(order))
        return order

    async def end_order(self, order_id: str, actor: Actor) -> OrderRow:
        async with self._writing() as (link, version):
            row = await link.fetchrow(
                "update headgate.orders set ended_at = now(), changed = $2"  # noqa: S608
                f" where id = $1 and ended_at is null and expires_at > now() returning {_ORDER}",
                order_id,
                version,
            )
            if row is None:
                raise Unknown(f'no order "{order_id}" is in force; list them')
            order = order_row(row)
            await _note(link, actor, "order.end", order_id, before=_told_order(order), after=None)
        return order

    # Who did what

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
    async def _reading(self) -> AsyncGenerator[Link]:
        try:
            async with self._database.borrowed() as link:
                yield link
        except UNFIT as error:
            raise Unwritten(f"the database does not take this: {self._database.problem(error)}; correct it") from error
        except FAILURES as error:
            raise DirectoryAway(self._database.problem(error)) from error

    @asynccontextmanager
    async def _writing(self) -> AsyncGenerator[tuple[Link, int]]:
        """A transaction, and the number of the change that it is."""
        async with self._reading() as link, link.transaction():
            taken = "update headgate.directory_state set version = version + 1 returning version"
            yield link, await link.fetchval(taken)


async def _tenant(link: Link, tenant_id: str) -> TenantRow:
    row = await link.fetchrow(
        f"select {_TENANT} from headgate.tenants where id = $1 and removed_at is null",  # noqa: S608
        tenant_id,
    )
    if row is None:
        raise Unknown(f'there is no "{tenant_id}" in the database; `headgate tenants list` shows who is')
    return tenant_row(row)


async def _insert_tenant(link: Link, tenant_id: str, terms: TenantTerms, version: int, tenants_max: int) -> TenantRow:
    above, slash, _ = tenant_id.rpartition("/")
    if tenant_id.count("/") >= DEPTH_MAX:
        raise Unwritten(f'"{tenant_id}" is too deep; a path is ORGANISATION/PROJECT/KEY')
    if slash:
        try:
            await _tenant(link, above)
        except Unknown:
            raise Unwritten(f'"{above}" does not exist; create it first') from None
    if await link.fetchval("select count(*) from headgate.tenants where removed_at is null") >= tenants_max:
        raise Unwritten(f"there are {tenants_max} tenants, as many as there may be; remove some")
    row = await link.fetchrow(
        f"insert into headgate.tenants (id, {_TERMS}, changed) values ($1, $2, $3, $4, $5, $6, $7, $8, $9)"  # noqa: S608
        # A name that was given up may be given again, to a tenant that has nothing of the first.
        " on conflict (id) do update set classes = excluded.classes, models = excluded.models,"
        " weight = excluded.weight, plan = excluded.plan, requests_per_minute = excluded.requests_per_minute,"
        " tokens_per_minute = excluded.tokens_per_minute, concurrency = excluded.concurrency, removed_at = null,"
        " created_at = now(), changed = excluded.changed"
        f" where headgate.tenants.removed_at is not null returning {_TENANT}",
        tenant_id,
        *_values(terms),
        version,
    )
    if row is None:
        raise Unwritten(f'"{tenant_id}" exists already; choose another name, or change or rotate that one')
    return tenant_row(row)


async def _insert_key(link: Link, tenant_id: str, digest: bytes, expires_at: Instant | None, version: int) -> KeyRow:
    row = await link.fetchrow(
        f"insert into headgate.keys (digest, tenant, expires_at, changed) values ($1, $2, $3, $4) returning {_KEY}",  # noqa: S608
        digest,
        tenant_id,
        None if expires_at is None else _moment(expires_at),
        version,
    )
    assert row is not None
    return key_row(row)


async def _note(
    link: Link,
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


# From rows, and to them


def tenant_row(row: Row) -> TenantRow:
    terms = TenantTerms(
        tuple(row["classes"]),
        tuple(row["models"]),
        row["weight"],
        row["plan"],
        row["requests_per_minute"],
        row["tokens_per_minute"],
        row["concurrency"],
    )
    return TenantRow(row["id"], terms, _at(row["created_at"]), _at_or_none(row["removed_at"]))


def key_row(row: Row) -> KeyRow:
    times = (_at(row["created_at"]), _at_or_none(row["expires_at"]), _at_or_none(row["revoked_at"]))
    return KeyRow(row["tenant"], row["digest"], *times)


def order_row(row: Row) -> OrderRow:
    times = (_at(row["created_at"]), _at(row["expires_at"]), _at_or_none(row["ended_at"]))
    terms: dict[str, int] = json.loads(row["terms"])
    return OrderRow(row["id"], row["verb"], row["target"], terms, row["reason"], row["ordered_by"], *times)


def _audit_row(row: Row) -> AuditRow:
    changes = [None if row[each] is None else json.loads(row[each]) for each in ("before", "after")]
    return AuditRow(row["number"], _at(row["at"]), row["actor"], row["origin"], row["action"], row["target"], *changes)


def _values(terms: TenantTerms) -> tuple[Any, ...]:
    limits = (terms.requests_per_minute, terms.tokens_per_minute, terms.concurrency)
    return list(terms.classes), list(terms.models), terms.weight, terms.plan, *limits


def _told(terms: TenantTerms) -> dict[str, object]:
    """What of it says anything."""
    return {name: value for name, value in asdict(terms).items() if value not in (None, ())}


def _told_order(order: OrderRow) -> dict[str, object]:
    expires_at = _told_at(order.expires_at)
    return {"verb": order.verb, "target": order.target, "terms": dict(order.terms), "expires_at": expires_at}


def _told_at(at: Instant | None) -> str | None:
    """As people read it."""
    return None if at is None else f"{_moment(at):%Y-%m-%dT%H:%M:%SZ}"


def _at(moment: datetime) -> Instant:
    since = moment - _EPOCH
    return Instant((since.days * 86_400 + since.seconds) * SECOND + since.microseconds * 1_000)


def _at_or_none(moment: datetime | None) -> Instant | None:
    return None if moment is None else _at(moment)


def _moment(at: Instant) -> datetime:
    return _EPOCH + timedelta(microseconds=at // 1_000)
