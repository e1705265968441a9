"""Directory writes: validation, audit log, schema and connection errors."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from headgate.control.directory_sync import migrate_database
from headgate.ledger.database import Database, describe_error
from headgate.ledger.directory.postgres_directory import DIGESTS_PER_KEY_MAX, PostgresDirectory
from headgate.ledger.partitions import drop_expired
from headgate.ledger.schema_migration import migrations
from headgate.model.money import NanoUsd, Period
from headgate.model.units import SECOND, Instant
from headgate.ports.directory import Actor, ChangeRejected, DirectoryUnavailable, NotFound, TenantSettings
from headgate.wire.keys import digest
from testing.ports import free_port
from testing.postgres import postgres
from testing.stores import make_certificates
from tests.ledger.databases import ADMIN, ANY, SECRET, with_key

Link = asyncpg.Connection
NASTY = "x'; drop table headgate.tenants; --"


@pytest_asyncio.fixture
async def database(url: str) -> AsyncIterator[Database]:
    database = Database(url)
    yield database
    await database.stop()


@pytest.fixture
def directory(database: Database) -> PostgresDirectory:
    return PostgresDirectory(database)


@pytest.mark.process
async def test_tenants_are_created_below_existing_ones_and_removed_with_their_descendants(
    directory: PostgresDirectory, link: Link
) -> None:
    with pytest.raises(ChangeRejected, match="create it first"):
        await directory.create_tenant("acme/search", ANY, ADMIN)
    await with_key(directory, "acme/search/ci", "hg-one")
    with pytest.raises(ChangeRejected, match="already exists"):
        await directory.create_tenant("acme", ANY, ADMIN)
    with pytest.raises(ChangeRejected, match="ORGANISATION/PROJECT/KEY"):
        await directory.create_key("acme/search", digest(SECRET, "hg-two"), ANY, None, ADMIN)
    with pytest.raises(NotFound, match="nobody"):
        await directory.change_tenant("nobody", ANY, ADMIN)

    assert await directory.remove_tenant("acme", ADMIN) == 3
    assert await directory.tenants(below="", after="", limit=10) == []
    assert await link.fetchval("select count(*) from headgate.keys where revoked_at is null") == 0
    again = await directory.create_tenant("acme", TenantSettings(weight=5), ADMIN)
    assert again.settings == TenantSettings(weight=5)


@pytest.mark.process
async def test_tenant_with_the_same_name_prefix_is_not_a_descendant(directory: PostgresDirectory) -> None:
    for name in ("acme", "acme2", "acme/search"):
        await directory.create_tenant(name, ANY, ADMIN)

    assert [each.id for each in await directory.tenants(below="acme", after="", limit=9)] == ["acme", "acme/search"]
    assert await directory.remove_tenant("acme", ADMIN) == 2


@pytest.mark.process
async def test_audit_log_contains_no_keys_or_key_hashes(directory: PostgresDirectory, link: Link) -> None:
    await with_key(directory, "acme/search/ci", "hg-canary")
    await directory.rotate_key("acme/search/ci", digest(SECRET, "hg-canary-2"), None, 60, ADMIN)
    await directory.revoke_key("acme/search/ci", ADMIN)
    rows = await link.fetch("select a::text as line from headgate.audit a")
    text = "\n".join(row["line"] for row in rows)

    assert "key.rotate" in text
    for each in ("hg-canary", digest(SECRET, "hg-canary").hex(), digest(SECRET, "hg-canary-2").hex()):
        assert each not in text
    [newest, *_] = await directory.audit(before=None, limit=10)
    assert (newest.action, newest.actor, newest.origin, newest.before) == (
        "key.revoke",
        "alice",
        "127.0.0.1",
        {"keys": 2},
    )


@pytest.mark.process
async def test_audit_log_contains_actions_that_change_no_row(directory: PostgresDirectory) -> None:
    await directory.add_audit_entry(ADMIN, "cell.hand_over", "gw-1", after={"reason": "drill: cell-failover"})

    [row] = await directory.audit(before=None, limit=10)
    assert (row.actor, row.action, row.target, row.before) == ("alice", "cell.hand_over", "gw-1", None)
    assert row.after == {"reason": "drill: cell-failover"}


@pytest.mark.process
@pytest.mark.parametrize(
    "change", ["update headgate.audit set actor = 'x'", "delete from headgate.audit", "truncate headgate.audit"]
)
async def test_audit_log_is_append_only(directory: PostgresDirectory, link: Link, change: str) -> None:
    await directory.create_tenant("acme", ANY, ADMIN)
    with pytest.raises(asyncpg.PostgresError, match="append-only"):
        await link.execute(change)

    assert await link.fetchval("select count(*) from headgate.audit") == 1


@pytest.mark.process
async def test_values_are_never_interpreted_as_sql(directory: PostgresDirectory, link: Link) -> None:
    await directory.create_tenant(NASTY, TenantSettings(classes=(NASTY,), models=(NASTY,)), Actor(NASTY, NASTY))
    await directory.create_override("hold", NASTY, {}, Actor(NASTY, NASTY), reason=NASTY, duration_s=5)
    [row] = await directory.tenants(below=NASTY, after="", limit=5)

    assert (row.id, row.settings.classes) == (NASTY, (NASTY,))
    assert await directory.keys(below=NASTY, after=NASTY, limit=5) == []
    assert await link.fetchval("select count(*) from headgate.tenants") == 1


@pytest.mark.process
async def test_concurrent_writes_get_consecutive_versions(directory: PostgresDirectory, link: Link) -> None:
    await asyncio.gather(*(directory.create_tenant(f"org{number}", ANY, ADMIN) for number in range(20)))
    changed = await link.fetch("select changed_version from headgate.tenants")

    assert sorted(row["changed_version"] for row in changed) == list(range(1, 21))


@pytest.mark.process
async def test_number_of_overlapping_rotations_is_bounded(directory: PostgresDirectory) -> None:
    await with_key(directory, "acme/search/ci", "hg-0")
    for number in range(1, DIGESTS_PER_KEY_MAX):
        await directory.rotate_key("acme/search/ci", digest(SECRET, f"hg-{number}"), None, 600, ADMIN)
    with pytest.raises(ChangeRejected, match="valid secrets"):
        await directory.rotate_key("acme/search/ci", digest(SECRET, "hg-more"), None, 600, ADMIN)


@pytest.mark.process
async def test_removed_tenants_are_excluded_from_the_limit(database: Database) -> None:
    directory = PostgresDirectory(database, tenants_max=2)
    for name in ("a", "b"):
        await directory.create_tenant(name, ANY, ADMIN)
    with pytest.raises(ChangeRejected, match="the limit of 2 tenants is reached"):
        await directory.create_tenant("c", ANY, ADMIN)
    await directory.remove_tenant("a", ADMIN)

    assert (await directory.create_tenant("c", ANY, ADMIN)).id == "c"


@pytest.mark.process
async def test_tenants_removed_long_ago_are_deleted_with_their_keys_and_budgets(
    directory: PostgresDirectory, link: Link
) -> None:
    for key in ("old/p/k", "late/p/k", "here/p/k"):
        await with_key(directory, key, f"hg-{key}")
        await directory.set_budget(key, Period.DAY, NanoUsd(1), ADMIN, hard=True)
    for tenant in ("old", "late"):
        await directory.remove_tenant(tenant, ADMIN)
    for table, at in (("tenants", "removed_at"), ("budgets", "removed_at"), ("keys", "revoked_at")):
        name = "id" if table == "tenants" else "tenant"
        await link.execute(f"update headgate.{table} set {at} = {at} - interval '402 days' where {name} ^@ 'old'")

    assert await drop_expired(link, retention_days=30) == 0
    left = await link.fetch("select id from headgate.tenants order by id")
    assert [row["id"] for row in left] == ["here", "here/p", "here/p/k", "late", "late/p", "late/p/k"]
    assert await link.fetchval("select count(*) from headgate.keys") == 2
    assert await link.fetchval("select count(*) from headgate.budgets") == 2


@pytest.mark.process
async def test_invalid_value_is_not_reported_as_an_unreachable_database(
    directory: PostgresDirectory, link: Link
) -> None:
    with pytest.raises(ChangeRejected, match="correct it"):
        await directory.create_override("throttle", "a\0b", {"concurrency": 1}, ADMIN, reason="", duration_s=60)
    with pytest.raises(ChangeRejected, match="correct it"):
        await directory.create_tenant("acme", TenantSettings(plan="free\n"), ADMIN)
    with pytest.raises(ChangeRejected, match="correct it"):
        await directory.create_tenant("acme", TenantSettings(weight=2**40), ADMIN)

    assert await link.fetchval("select version from headgate.directory_state") == 0
    assert await link.fetchval("select count(*) from headgate.audit") == 0


@pytest.mark.process
async def test_audit_log_contains_iso_timestamps(directory: PostgresDirectory) -> None:
    order = await directory.create_override("hold", "batch", {}, ADMIN, reason="", duration_s=60)
    await directory.end_override(order.id, ADMIN)
    await directory.create_tenant("acme", ANY, ADMIN)
    await directory.create_tenant("acme/search", ANY, ADMIN)
    noon = Instant(4_102_488_000 * SECOND)
    await directory.create_key("acme/search/ci", digest(SECRET, "hg-one"), ANY, noon, ADMIN)
    await directory.rotate_key("acme/search/ci", digest(SECRET, "hg-two"), noon, 60, ADMIN)

    rotated, made, _, _, ended, placed = await directory.audit(before=None, limit=10)
    assert rotated.after == {"keys": 2, "overlap_s": 60, "expires_at": "2100-01-01T12:00:00Z"}
    assert made.after == {"expires_at": "2100-01-01T12:00:00Z"}
    assert placed.after == ended.before
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", str((placed.after or {})["expires_at"]))


@pytest.mark.process
async def test_override_can_be_ended_only_once(directory: PostgresDirectory) -> None:
    order = await directory.create_override("pin", "small", {"level": 3}, ADMIN, reason="", duration_s=60)
    assert [each.id for each in await directory.overrides(limit=5)] == [order.id]
    await directory.end_override(order.id, ADMIN)

    with pytest.raises(NotFound):
        await directory.end_override(order.id, ADMIN)
    assert await directory.overrides(limit=5) == []


# Schema


@pytest.mark.process
async def test_concurrent_migrations_apply_each_step_once(empty_url: str) -> None:
    steps = await asyncio.gather(*(migrate_database(empty_url, lambda _: None) for _ in range(4)))

    assert sorted(steps) == [0, 0, 0, len(migrations())]


# Connection errors


async def test_error_messages_do_not_contain_the_password() -> None:
    away = f"postgresql://u:geheim%21@127.0.0.1:{free_port()}/db"
    with pytest.raises(DirectoryUnavailable) as raised:
        await PostgresDirectory(Database(away)).overrides(limit=1)

    assert "connection failed" in str(raised.value)
    assert describe_error(ValueError(f"cannot parse {away} geheim%21 geheim!"), away) == "cannot parse *** *** ***"


@pytest.mark.process
async def test_wrong_password_and_hanging_database_raise_different_errors() -> None:
    with postgres(password="geheim", options=("fsync=off",)) as server:
        right, wrong = server.url, server.url.replace("geheim", "falsch")
        with pytest.raises(OSError, match="user or password rejected"):
            await migrate_database(wrong, lambda _: None)
        await migrate_database(right, lambda _: None)
        database = Database(right, connect_s_max=8.0, query_s_max=8.0)
        directory = PostgresDirectory(database)
        await directory.create_tenant("acme", ANY, ADMIN)
        server.pause()
        with pytest.raises(DirectoryUnavailable, match="in time"):
            async with asyncio.timeout(60):
                await directory.create_tenant("late", ANY, ADMIN)
        server.resume()
        async with asyncio.timeout(60):
            await directory.create_tenant("later", ANY, ADMIN)
        await database.stop()


@pytest.mark.process
async def test_tls_connection_requires_the_right_certificate_authority(tmp_path: Path) -> None:
    for name in ("ours", "another"):
        (tmp_path / name).mkdir()
    ours, another = (make_certificates(tmp_path / name) for name in ("ours", "another"))
    with postgres(certificate=ours.certificate, key=ours.key) as server:
        verified = f"{server.url}?sslmode=verify-full&sslrootcert="
        assert await migrate_database(f"{verified}{ours.authority}", lambda _: None) == len(migrations())
        for url in (f"{verified}{another.authority}", f"{server.url}?sslmode=disable"):
            with pytest.raises(OSError, match=r"."):
                await migrate_database(url, lambda _: None)
