"""Does `headgate doctor` say whether the accounts can be kept, and what to do where they cannot?"""

from pathlib import Path

import pytest

from headgate.cli.checkup.database import look_at_database
from headgate.cli.checkup.finding import Finding, Level
from testing.ports import free_port
from testing.postgres import postgres
from tests.config.builders import settings_of, small_with
from tests.ledger.databases import migrated

SECRET = "canary-of-the-database"


async def findings(url: str, *, spool: Path | str | None = None, prices: str = "") -> list[Finding]:
    ledger = [] if spool is None else ["ledger:", f"  spool: {spool}", "  spool_max: 16MiB"]
    text = small_with("key_secret: a secret of more than sixteen letters", f"database: {url}", *ledger)
    return await look_at_database(settings_of(text.replace("in_flight_max: 4", f"in_flight_max: 4{prices}")))


async def test_without_a_database_nothing_is_asked() -> None:
    assert await look_at_database(settings_of(small_with())) == []


@pytest.mark.process
async def test_a_database_is_a_problem_until_it_is_prepared_and_its_password_is_not_told(tmp_path: Path) -> None:
    with postgres(password="right") as server:
        [unprepared] = await findings(server.url)
        [refused] = await findings(server.url.replace("right", SECRET))
        await migrated(server.url)
        prepared = await findings(server.url, spool=tmp_path / "not" / "yet", prices=", prices: {per_hour: 1}")

    assert (unprepared.level, refused.level) == (Level.PROBLEM, Level.PROBLEM)
    assert "headgate ledger migrate" in unprepared.next
    assert SECRET not in f"{refused}"
    assert [each.level for each in prepared] == [Level.OK] * 3
    assert "right@" not in f"{prepared}"


async def test_nobody_there_is_a_problem_with_the_next_step() -> None:
    [found] = await findings(f"postgresql://u:{SECRET}@127.0.0.1:{free_port()}/x")

    assert (found.level, found.next[:8]) == (Level.PROBLEM, "start it")
    assert SECRET not in f"{found}"


async def test_a_spool_that_is_no_folder_and_a_pool_without_a_price_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    _, spool, price = await findings(f"postgresql://127.0.0.1:{free_port()}/x", spool=tmp_path / "file" / "spool")

    assert (spool.level, price.level) == (Level.PROBLEM, Level.NOTE)
    assert "is not a folder" in spool.message
    assert "write prices in pools.small" in price.next


async def test_a_price_that_begins_later_is_pointed_out(tmp_path: Path) -> None:
    later = ", prices: {from: 2199-01-01, per_hour: 1}"
    found = await findings(f"postgresql://127.0.0.1:{free_port()}/x", spool=tmp_path, prices=later)

    assert (found[-1].level, found[-1].message) == (Level.NOTE, "none holds yet today")
