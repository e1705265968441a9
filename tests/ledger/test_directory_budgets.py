"""Tenant budgets in the database are exact, audited and replicated to every process."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from headgate.ledger.database import Database
from headgate.ledger.directory.directory_replica import DirectorySnapshot
from headgate.ledger.directory.postgres_directory import PostgresDirectory
from headgate.model.money import Budget, NanoUsd, Period
from headgate.ports.directory import NotFound
from tests.ledger.databases import ADMIN, ANY, followed, until, with_key
from tests.ledger.test_gateway import READER, admin, fresh, made, running

pytestmark = pytest.mark.process

Link = asyncpg.Connection
ONE = NanoUsd(1_000_000_001)


@pytest_asyncio.fixture
async def directory(url: str) -> AsyncIterator[PostgresDirectory]:
    database = Database(url)
    yield PostgresDirectory(database)
    await database.stop()


async def test_new_budget_replaces_the_existing_one_for_the_same_period_and_is_audited(
    directory: PostgresDirectory,
) -> None:
    await directory.create_tenant("acme", ANY, ADMIN)
    await directory.set_budget("acme", Period.DAY, ONE, ADMIN, hard=True)
    await directory.set_budget("acme", Period.DAY, NanoUsd(5), ADMIN, hard=False)
    await directory.set_budget("acme", Period.MONTH, ONE, ADMIN, hard=True)

    rows = await directory.budgets(below="", after="", limit=10)
    assert [(each.period, each.limit, each.hard) for each in rows] == [
        (Period.DAY, 5, False),
        (Period.MONTH, ONE, True),
    ]
    _, replaced, first, _ = await directory.audit(before=None, limit=10)
    assert (first.action, first.before, first.after) == (
        "budget.set.day",
        None,
        {"limit_nano_usd": ONE, "kind": "hard"},
    )
    assert (replaced.before, replaced.after) == (first.after, {"limit_nano_usd": 5, "kind": "soft"})


async def test_unknown_tenant_and_unknown_budget_are_rejected(directory: PostgresDirectory) -> None:
    with pytest.raises(NotFound, match="nobody"):
        await directory.set_budget("nobody", Period.DAY, ONE, ADMIN, hard=True)
    await directory.create_tenant("acme", ANY, ADMIN)
    with pytest.raises(NotFound, match="has no budget per month"):
        await directory.remove_budget("acme", Period.MONTH, ADMIN)


async def test_budget_for_a_tenant_in_the_file_cannot_be_set_in_the_database(url: str, tmp_path: Path) -> None:
    async with running(url, tmp_path) as gateway:
        await fresh(gateway)
        status, said = await admin(gateway, "budgets/set", tenant="filed", period="day", limit_usd=1)
        assert (status, "tenants.filed.budgets" in said["error"]["message"]) == (409, True)
        status, said = await admin(gateway, "budgets/set", tenant="nobody", period="day", limit_usd=1)
        assert (status, "headgate tenants list" in said["error"]["message"]) == (404, True)


async def test_recreated_tenant_does_not_inherit_old_budgets(directory: PostgresDirectory) -> None:
    await with_key(directory, "acme/search/ci", "hg-one")
    for tenant in ("acme", "acme/search/ci"):
        await directory.set_budget(tenant, Period.DAY, ONE, ADMIN, hard=True)
    await directory.remove_tenant("acme", ADMIN)
    await directory.create_tenant("acme", ANY, ADMIN)

    assert await directory.budgets(below="", after="", limit=10) == []


async def test_budget_list_is_paged_by_tenant(directory: PostgresDirectory) -> None:
    for tenant in ("a", "a/b", "ab", "b"):
        await directory.create_tenant(tenant, ANY, ADMIN)
        for period in Period:
            await directory.set_budget(tenant, period, ONE, ADMIN, hard=True)

    assert {each.tenant for each in await directory.budgets(below="a", after="", limit=9)} == {"a", "a/b"}
    assert [each.tenant for each in await directory.budgets(below="", after="a/b", limit=1)] == ["ab", "ab"]


async def test_notification_updates_only_the_changed_budget(url: str, directory: PostgresDirectory) -> None:
    pictures: list[DirectorySnapshot] = []
    await with_key(directory, "acme/search/ci", "hg-one")
    await directory.set_budget("acme/search", Period.MONTH, ONE, ADMIN, hard=True)
    async with followed(url, pictures.append) as copy:
        await until(lambda: copy.fresh)
        [month] = copy.snapshot.budgets["acme/search"]
        await directory.set_budget("acme/search", Period.DAY, ONE, ADMIN, hard=False)
        await until(lambda: len(copy.snapshot.budgets["acme/search"]) == 2)
        assert copy.snapshot.budgets["acme/search"][1] is month, "an unchanged budget was read again"
        await directory.remove_budget("acme/search", Period.DAY, ADMIN)
        await until(lambda: len(copy.snapshot.budgets["acme/search"]) == 1)
        await directory.remove_budget("acme/search", Period.MONTH, ADMIN)
        await until(lambda: not copy.snapshot.budgets)


async def test_all_budgets_are_read_in_pages(url: str, link: Link) -> None:
    await link.execute(
        "insert into headgate.tenants (id, changed_version) select 'org' || n, 1 from generate_series(1, 1100) n;"
        "insert into headgate.budgets (tenant, period, limit_nano_usd, hard, changed_version)"
        " select id, period, 7, true, 1 from headgate.tenants, unnest(array['day', 'month']) period;"
        "update headgate.directory_state set version = 1"
    )
    async with followed(url) as copy:
        await until(lambda: copy.fresh)

    assert {len(each) for each in copy.snapshot.budgets.values()} == {2}
    assert len(copy.snapshot.budgets) == 1100


async def test_budget_set_by_an_operator_takes_effect_and_is_shown_in_dollars(url: str, tmp_path: Path) -> None:
    async with running(url, tmp_path) as gateway:
        await fresh(gateway)
        await made(gateway)
        inside = gateway.gateway._accounts._directory
        assert inside is not None
        status, said = await admin(
            gateway, "budgets/set", tenant="acme/search", period="day", limit_usd="0.1", kind="soft"
        )
        assert (status, said["limit_usd"], said["kind"]) == (200, "0.1", "soft")
        tenant = inside.tenant("acme/search")  # type: ignore[arg-type]
        assert tenant is not None
        assert tenant.budgets == (Budget(Period.DAY, NanoUsd(100_000_000), hard=False),)
        below = inside.tenant("acme/search/ci")  # type: ignore[arg-type]
        assert below is not None
        assert below.budgets == (), "the budget must apply to its own level only"
        assert (await gateway.status())["database"]["budgets"] == 1

        _, listed = await admin(gateway, "budgets/list", who=READER)
        assert [each["tenant"] for each in listed["data"]] == ["acme/search"]
        assert (await admin(gateway, "budgets/set", who=READER, tenant="acme", period="day", limit_usd=1))[0] == 403
        status, said = await admin(gateway, "budgets/remove", tenant="acme/search", period="day")
        assert (status, said["removed"]) == (200, True)
        after = inside.tenant("acme/search")  # type: ignore[arg-type]
        assert after is not None
        assert after.budgets == ()


@pytest.mark.parametrize(
    ("usd", "status", "said"),
    [
        ("0", 409, "above 0"),
        ("-1", 409, "above 0"),
        ("NaN", 409, "above 0"),
        ("Infinity", 409, "above 0"),
        ("1e-10", 409, "nine decimal places"),
        (1_000_000_001, 409, "at most 1000000000"),
        ("many", 400, "valid fields"),
        (0.1, 200, ""),
        ("1e2", 200, ""),
    ],
)
async def test_invalid_amount_is_rejected_with_the_next_step(
    url: str, tmp_path: Path, usd: object, status: int, said: str
) -> None:
    async with running(url, tmp_path) as gateway:
        await fresh(gateway)
        await admin(gateway, "tenants/create", tenant="acme")
        answered, body = await admin(gateway, "budgets/set", tenant="acme", period="day", limit_usd=usd)

    assert (answered, said in json.dumps(body)) == (status, True)
    if answered == 200:
        assert body["limit_usd"] in ("0.1", "100")
