"""Verbs that change tenants, keys, budgets and overrides in the database."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headgate.cli.input.admin_request import print_table
from headgate.ledger.schema_migration import OLDEST_USABLE, Migration, migrate, migrations
from testing.gateway import gateway_process
from testing.ports import free_port
from testing.postgres import Postgres, postgres
from tests.cli.conftest import Headgate, Said
from tests.ledger.test_gateway import config_with


class Operator:
    """An operator who runs verbs in a directory, usually with a key."""

    def __init__(self, headgate: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
        self._headgate = headgate
        self._monkeypatch = monkeypatch

    def says(self, *arguments: str, key: str | None = "hg-operator") -> Said:
        with self._monkeypatch.context() as patch:
            patch.delenv("HEADGATE_ADMIN_KEY", raising=False)
            if key is not None:
                patch.setenv("HEADGATE_ADMIN_KEY", key)
            return self._headgate(*arguments)

    def done(self, *arguments: str) -> Any:
        """Result of a verb that must succeed."""
        said = self.says(*arguments, "--json")
        assert said.code == 0, said.err
        return json.loads(said.out)

    def refused(self, *arguments: str, key: str | None = "hg-operator") -> str:
        """Error message from a verb that must fail."""
        said = self.says(*arguments, key=key)
        assert said.code == 1, said.out
        return said.err


@pytest.fixture
def operator(headgate: Headgate, monkeypatch: pytest.MonkeyPatch) -> Operator:
    return Operator(headgate, monkeypatch)


@pytest.fixture
def server() -> Iterator[Postgres]:
    with postgres(options=("fsync=off",)) as running:
        yield running


@pytest.mark.process
def test_operator_creates_rotates_and_revokes_a_key(operator: Operator, server: Postgres, file: Path) -> None:
    done, refused, says = operator.done, operator.refused, operator.says
    config = config_with("http://127.0.0.1:9", server.url)
    file.write_text(json.dumps(config))
    assert "no gateway is responding" in refused("tenants", "list")
    unprepared = says("ledger", "migrate", "--check")
    assert (unprepared.code, unprepared.out.splitlines()[0]) == (1, "pending 0001 directory: creates tables")
    assert f"{len(migrations())} steps applied" in says("ledger", "migrate").out
    assert "up to date" in says("ledger", "migrate", "--config", "headgate.yaml").out
    checked = says("ledger", "migrate", "--check")
    assert (checked.code, checked.out) == (0, f"the database schema is up to date ({len(migrations()):04})\n")
    with gateway_process(config, file.parent):
        assert "HEADGATE_ADMIN_KEY" in refused("tenants", "list", key=None)
        assert "missing or unknown operator key" in refused("tenants", "list", key="hg-filed")
        assert 'lacks the permission "keys"' in refused("tenants", "create", "acme", key="hg-reader")
        assert "create it first" in refused("keys", "create", "acme/search/ci")
        done("tenants", "create", "acme", "--plan", "critical")
        done("tenants", "create", "acme/search", "--class", "interactive")
        made = says("keys", "create", "acme/search/ci", "--expires-in", "90d")
        assert made.out.startswith("hg-")
        rotated = done("keys", "rotate", "acme/search/ci", "--overlap", "0")
        assert rotated["secret"].startswith("hg-")
        listed = says("keys", "list")
        assert "expired" in listed.out
        assert "active" in listed.out
        assert made.out.strip() not in listed.out + listed.err
        revoked = says("keys", "revoke", "acme/search/ci").out
        assert "2 revoked" in revoked
        assert "within moments" in revoked
        assert "no active key" in says("keys", "revoke", "acme/search/ci").out
        order = done("operate", "hold", "batch", "--for", "15m", "--reason", "a test")
        assert "batch" in says("operate", "list").out
        done("operate", "end", order["override"])
        assert "no active overrides" in says("operate", "list").err
        assert "throttle needs at least one limit" in refused("operate", "throttle", "acme", "--for", "1h")
        _the_audit_log_is_read_page_by_page(operator)
        assert done("tenants", "remove", "acme")["removed"] == 3


def _the_audit_log_is_read_page_by_page(operator: Operator) -> None:
    says = operator.says
    newest = says("operate", "audit", "--limit", "1")
    assert "override.end" in newest.out
    assert not re.search("[0-9]{12}", newest.out), "a time that nobody can read"
    [before] = re.findall("--before ([0-9]+)", newest.err)
    next_one = says("operate", "audit", "--limit", "1", "--before", before).out
    assert "override.hold" in next_one
    assert "override.end" not in next_one
    assert "no earlier entries" in says("operate", "audit", "--before", "1").err


@pytest.mark.process
def test_operator_sets_shows_and_removes_a_budget(operator: Operator, server: Postgres, file: Path) -> None:
    done, refused, says = operator.done, operator.refused, operator.says
    config = config_with("http://127.0.0.1:9", server.url)
    file.write_text(json.dumps(config))
    assert says("ledger", "migrate").code == 0
    with gateway_process(config, file.parent):
        done("tenants", "create", "acme")
        assert done("budgets", "set", "acme", "month", "2000.5", "--soft")["limit_usd"] == "2000.5"
        assert "2000.5" in says("budgets", "list").out
        assert "tenant:acme" in says("budgets", "show", "acme/search").out
        assert "above 0" in refused("budgets", "set", "acme", "day", "0")
        assert "removed the budget of acme: 2000.5 dollars per month" in says("budgets", "remove", "acme", "month").out
        assert "has no budget" in refused("budgets", "remove", "acme", "month")
        nobody = says("budgets", "show", "nobody").err
        assert 'no budget applies for "nobody"' in nobody
        assert "cell" not in nobody
        assert "tenants.filed.budgets" in refused("budgets", "set", "filed", "day", "5")


def test_values_of_an_audit_entry_are_printed_as_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    after = {"verb": "pin", "parameters": {"level": 2}, "reason": "too\x1b slow", "plan": None, "models": ["a", "b"]}
    print_table([{"target": "main", "before": None, "after": after}], ("target", "before", "after"), empty="")

    assert capsys.readouterr().out.splitlines() == [
        "TARGET  AFTER",
        'main    verb=pin parameters.level=2 reason="too? slow" models=a,b',
    ]


def test_invalid_duration_is_reported(headgate: Headgate) -> None:
    said = headgate("operate", "hold", "batch", "--for", "soon")

    assert said.code == 2
    assert "such as 12h" in said.err


def test_file_without_database_is_reported_with_next_step(headgate: Headgate, file: Path) -> None:
    file.write_text("pools: {}\nmodels: {}\n")

    assert "database.url" in headgate("ledger", "migrate").err


def test_check_of_the_schema_exits_2_on_an_error(headgate: Headgate, file: Path) -> None:
    file.write_text("pools: {}\nmodels: {}\n")
    assert headgate("ledger", "migrate", "--check").code == 2

    file.write_text(f"database: postgresql://127.0.0.1:{free_port()}/x\n")
    unreachable = headgate("ledger", "migrate", "--check")
    assert (unreachable.code, unreachable.out) == (2, "")
    assert "the check failed: connection failed" in unreachable.err


NEXT = len(migrations()) + 1


def a_migration(oldest_schema: int) -> Migration:
    """A migration of the next version, after which gateways of this schema or newer can use the database."""
    return Migration(NEXT, "next", f"-- oldest schema: {oldest_schema}\ncreate table headgate.next ()")


@pytest.mark.process
@pytest.mark.parametrize(
    ("applied", "code", "out", "err"),
    [
        ((), 1, "pending 0001 directory: creates tables", ""),
        (migrations()[:1], 1, f"the database lacks {NEXT - 2} of {NEXT - 1} migrations, first 0002", ""),
        (migrations()[:OLDEST_USABLE], 1, "gateways of this version can use schema 0002 until you run", ""),
        (migrations(), 0, f"the database schema is up to date ({NEXT - 1:04})", ""),
        ((*migrations(), a_migration(OLDEST_USABLE)), 0, f"the database schema is up to date ({NEXT:04})", ""),
        ((*migrations(), a_migration(NEXT)), 2, "", f"the database has migration {NEXT:04} from a newer version"),
    ],
    ids=["empty", "too old", "pending", "up to date", "newer and compatible", "newer and breaking"],
)
def test_check_of_the_schema_exits_by_what_has_to_be_done(
    headgate: Headgate,
    server: Postgres,
    file: Path,
    *,
    applied: tuple[Migration, ...],
    code: int,
    out: str,
    err: str,
) -> None:
    async def apply() -> list[object]:
        link = await asyncpg.connect(server.url)
        if applied:
            await migrate(link, applied, lambda _: None)
        tables = await link.fetch("select relname from pg_class where relnamespace = to_regnamespace('headgate')")
        await link.close()
        return tables

    before = asyncio.run(apply())
    file.write_text(json.dumps({"database": server.url}))
    checked = headgate("ledger", "migrate", "--check")

    assert checked.code == code, checked.out + checked.err
    assert out in checked.out
    assert err in checked.err
    assert bool(checked.out) == bool(out)
    assert bool(checked.err) == bool(err)
    # Nothing was changed.
    assert asyncio.run(apply()) == before


@pytest.mark.process
@pytest.mark.parametrize("applied", [migrations(), migrations()[:OLDEST_USABLE], migrations()[:1]])
def test_check_of_the_schema_exits_3_if_an_applied_migration_came_from_another_file(
    headgate: Headgate, server: Postgres, file: Path, applied: tuple[Migration, ...]
) -> None:
    async def apply() -> None:
        link = await asyncpg.connect(server.url)
        await migrate(link, applied, lambda _: None)
        await link.execute("update headgate.migrations set sha256 = 'x' where number = 1")
        await link.close()

    asyncio.run(apply())
    file.write_text(json.dumps({"database": server.url}))
    checked = headgate("ledger", "migrate", "--check")

    pending = len(migrations()) - len(applied)
    assert checked.code == 3, checked.out + checked.err
    assert checked.out == "changed 0001 directory: applied from another file than this version's\n"
    assert "install the version that applied it, or a later one" in checked.err
    assert (f"do not run the {pending} pending migrations" in checked.err) == bool(pending)


@pytest.mark.process
def test_check_of_the_schema_exits_2_if_the_database_has_stopped(
    headgate: Headgate, server: Postgres, file: Path
) -> None:
    file.write_text(json.dumps({"database": server.url}))
    server.kill()
    checked = headgate("ledger", "migrate", "--check")

    assert (checked.code, checked.out) == (2, "")
    assert "the check failed: connection failed" in checked.err
