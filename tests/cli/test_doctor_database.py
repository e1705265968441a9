"""`headgate doctor` findings about the database and the ledger."""

from pathlib import Path

import pytest

from headgate.cli.checkup.database import check_database
from headgate.cli.checkup.finding import CheckFinding, Level
from testing.ports import free_port
from testing.postgres import postgres
from tests.config.builders import settings_of, small_with
from tests.ledger.databases import migrated

SECRET = "canary-of-the-database"


async def findings(url: str, *, spool: Path | str | None = None, prices: str = "") -> list[CheckFinding]:
    ledger = [] if spool is None else ["ledger:", f"  spool_directory: {spool}", "  spool_bytes_max: 16MiB"]
    text = small_with("key_secret: a secret of more than sixteen letters", f"database: {url}", *ledger)
    return await check_database(settings_of(text.replace("in_flight_max: 4", f"in_flight_max: 4{prices}")))


async def test_configuration_without_database_produces_no_findings() -> None:
    assert await check_database(settings_of(small_with())) == []


@pytest.mark.process
async def test_unmigrated_database_is_reported_without_password(tmp_path: Path) -> None:
    with postgres(password="right") as server:
        [unprepared] = await findings(server.url)
        [refused] = await findings(server.url.replace("right", SECRET))
        await migrated(server.url)
        prepared = await findings(server.url, spool=tmp_path / "not" / "yet", prices=", prices: {per_hour: 1}")

    assert (unprepared.level, refused.level) == (Level.PROBLEM, Level.PROBLEM)
    assert "headgate ledger migrate" in unprepared.next_step
    assert SECRET not in f"{refused}"
    assert [each.level for each in prepared] == [Level.OK] * 3
    assert "right@" not in f"{prepared}"


async def test_unreachable_server_is_reported_with_next_step() -> None:
    [found] = await findings(f"postgresql://u:{SECRET}@127.0.0.1:{free_port()}/x")

    assert (found.level, found.next_step[:8]) == (Level.PROBLEM, "start it")
    assert SECRET not in f"{found}"


async def test_invalid_spool_directory_and_missing_price_are_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    _, spool, price = await findings(f"postgresql://127.0.0.1:{free_port()}/x", spool=tmp_path / "file" / "spool")

    assert (spool.level, price.level) == (Level.PROBLEM, Level.NOTE)
    assert "is not a directory" in spool.message
    assert "set pools.small.prices" in price.next_step


async def test_future_price_is_reported(tmp_path: Path) -> None:
    later = ", prices: {from: 2199-01-01, per_hour: 1}"
    found = await findings(f"postgresql://127.0.0.1:{free_port()}/x", spool=tmp_path, prices=later)

    assert (found[-1].level, found[-1].message) == (Level.NOTE, "no price is valid today")
