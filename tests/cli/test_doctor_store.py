"""Does `headgate doctor` say whether the store of a cell can be used, and what to do where it cannot?"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from headgate.cli.checkup.finding import Finding, Level
from headgate.cli.checkup.store import look_at_store
from testing.fake_engine import FakeEngine
from testing.gateway import a_config, gateway_in_loop
from testing.ports import free_port
from testing.stores import Server, redis, valkey
from tests.config.builders import settings_of, small_with
from tests.hosts.cell.store_places import started

SECRET = "canary-of-the-store"


async def findings(url: str) -> list[Finding]:
    return await look_at_store(settings_of(small_with("cell:", f"  store: {url}", "  members: 2")))


async def test_without_a_cell_nothing_is_asked() -> None:
    assert await look_at_store(settings_of(small_with())) == []


@pytest.mark.process
@pytest.mark.parametrize(("begin", "name"), [(redis, "Redis 7"), (valkey, "Valkey 8")])
async def test_a_store_that_fits_is_named_with_its_version_and_speed(
    begin: Callable[[], AbstractContextManager[Server]], name: str
) -> None:
    with started(begin) as store:
        [found] = await findings(store.url)

    assert found.level is Level.OK
    assert f"is {name}" in found.message
    assert found.message.endswith(" ms")


@pytest.mark.process
async def test_a_store_that_throws_keys_away_is_pointed_out() -> None:
    with started(redis) as store:
        store.client().config_set("maxmemory-policy", "allkeys-lru")
        fits, throws = await findings(store.url)

    assert (fits.level, throws.level) == (Level.OK, Level.NOTE)
    assert "allkeys-lru" in throws.message
    assert "noeviction" in throws.next


async def test_nobody_there_is_a_problem_with_the_next_step() -> None:
    [found] = await findings(f"redis://:{SECRET}@127.0.0.1:{free_port()}")

    assert found.level is Level.PROBLEM
    assert "nothing listens" in found.message
    assert "start it" in found.next
    assert SECRET not in f"{found}"


@pytest.mark.process
async def test_a_wrong_password_is_a_problem_and_is_not_repeated() -> None:
    with started(lambda: redis(password="right")) as store:
        [found] = await findings(store.url.replace("right", SECRET))

    assert found.level is Level.PROBLEM
    assert "refuses the user or password" in found.message
    assert SECRET not in f"{found}"


async def test_a_gateway_of_a_cell_runs_with_the_configuration_that_its_file_has(tmp_path: Path) -> None:
    """The doctor compares the two; where each of them listens is no part of it."""
    cell = {"store": f"redis://127.0.0.1:{free_port()}", "members": 2}
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, cell=cell), tmp_path) as gateway:
        told = (await gateway.status())["config_hash"]

        assert told == settings_of(gateway.file.read_text()).hash
