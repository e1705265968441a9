"""A process's first read of a large directory is applied in steps, and later changes visit only what has changed."""

from itertools import pairwise

import asyncpg
import pytest

from headgate.control.directory_sync import DirectorySync
from headgate.edge.auth import KeyUnverified
from headgate.ledger.database import Database
from headgate.ledger.directory.postgres_directory import PostgresDirectory
from headgate.ledger.options import DatabaseOptions
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant, TenantTable
from headgate.model.units import SECOND, Duration, TenantId
from headgate.ports.directory import TenantSettings
from headgate.wire.keys import digest
from tests.ledger.databases import ADMIN, SECRET, until

pytestmark = pytest.mark.process

FILE = Policy(tenants=(Tenant(TenantId("org7"), weight=500), Tenant(TenantId("laptop"))))
COUNT = 1_200


async def fill(url: str) -> None:
    link = await asyncpg.connect(url)
    await link.execute(
        f"insert into headgate.tenants (id, changed_version) select 'org' || n, 1 from generate_series(1, {COUNT}) n;"
        "update headgate.directory_state set version = 1"
    )
    await link.execute(
        "insert into headgate.keys (digest, tenant, changed_version) values ($1, 'org1', 1)", digest(SECRET, "hg-one")
    )
    await link.close()


async def test_first_read_is_applied_in_steps_and_keys_are_valid_only_at_the_end(url: str) -> None:
    await fill(url)
    steps: list[tuple[int, bool, str]] = []
    ends: list[Policy] = []

    def on_progress() -> None:
        policy = sync.apply(FILE)
        assert sync.tenant(TenantId("org1")) is None
        with pytest.raises(KeyUnverified):
            sync.find(digest(SECRET, "hg-one"))
        steps.append((len(policy.tenants), policy.tenants_loaded, sync.name))

    sync = DirectorySync(
        DatabaseOptions(url, url, Duration(60 * SECOND)), lambda: ends.append(sync.apply(FILE)), on_progress
    )
    sync.start()
    await until(lambda: ends)

    # The tenants of the file count too, and one of them is also in the database.
    assert [(count > 2, loaded, name) for count, loaded, name in steps] == [(True, False, "")] * 2
    assert steps[0][0] < steps[1][0] < COUNT + 1
    [policy] = ends
    assert (len(policy.tenants), policy.tenants_loaded) == (COUNT + 1, True)
    assert sync.find(digest(SECRET, "hg-one")) == "org1"
    assert {each.id: each.weight for each in policy.tenants}["org7"] == 500
    await sync.stop()


async def test_change_shares_all_other_tenants_with_the_policy_before_it(url: str) -> None:
    await fill(url)
    policies: list[Policy] = []
    sync = DirectorySync(
        DatabaseOptions(url, url, Duration(60 * SECOND)), lambda: policies.append(sync.apply(FILE)), lambda: None
    )
    sync.start()
    await until(lambda: policies)
    database = Database(url)
    directory = PostgresDirectory(database)
    await directory.change_tenant("org5", TenantSettings(weight=300), ADMIN)
    await until(lambda: len(policies) == 2)
    # The file's tenant stays in force, whatever the database says.
    await directory.change_tenant("org7", TenantSettings(weight=300), ADMIN)
    await until(lambda: len(policies) == 3)
    await directory.remove_tenant("org5", ADMIN)
    await until(lambda: len(policies) == 4)

    tables = [each.tenants.by_id for each in policies if isinstance(each.tenants, TenantTable)]
    assert len(tables) == 4
    changes = [after.changes_since(before) for before, after in pairwise(tables)]
    assert changes == [{"org5": Tenant(TenantId("org5"), weight=300)}, {}, {"org5": None}]
    for before, after in pairwise(tables):
        assert sum(one is not other for one, other in zip(before.leaves, after.leaves, strict=True)) <= 1
    assert sync.status()["shadowed_by_file"] == ["org7"]
    await sync.stop()
    await database.stop()
