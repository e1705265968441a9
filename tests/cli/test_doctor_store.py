"""`headgate doctor` findings about a cell's store."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from headgate.cli.checkup.finding import CheckFinding, Level
from headgate.cli.checkup.store import check_store
from testing.fake_engine import FakeEngine
from testing.gateway import a_config, gateway_in_loop
from testing.ports import free_port
from testing.stores import Server, redis, valkey
from tests.config.builders import settings_of, small_with
from tests.hosts.cell.store_places import started

SECRET = "canary-of-the-store"


async def findings(url: str) -> list[CheckFinding]:
    return await check_store(settings_of(small_with("cell:", f"  store: {url}", "  member_count: 2")))


async def test_configuration_without_cell_produces_no_findings() -> None:
    assert await check_store(settings_of(small_with())) == []


@pytest.mark.process
@pytest.mark.parametrize(("begin", "name"), [(redis, "Redis 7"), (valkey, "Valkey 8")])
async def test_usable_store_is_reported_with_version_and_latency(
    begin: Callable[[], AbstractContextManager[Server]], name: str
) -> None:
    with started(begin) as store:
        [found] = await findings(store.url)

    assert found.level is Level.OK
    assert found.message.startswith(name)
    assert found.message.endswith(" ms")


@pytest.mark.process
async def test_store_configured_to_evict_keys_is_reported() -> None:
    with started(redis) as store:
        store.client().config_set("maxmemory-policy", "allkeys-lru")
        fits, throws = await findings(store.url)

    assert (fits.level, throws.level) == (Level.OK, Level.NOTE)
    assert "allkeys-lru" in throws.message
    assert "noeviction" in throws.next_step


async def test_unreachable_store_is_reported_with_next_step() -> None:
    [found] = await findings(f"redis://:{SECRET}@127.0.0.1:{free_port()}")

    assert found.level is Level.PROBLEM
    assert "no process is listening" in found.message
    assert "start it" in found.next_step
    assert SECRET not in f"{found}"


@pytest.mark.process
async def test_wrong_store_password_is_reported_without_quoting_it() -> None:
    with started(lambda: redis(password="right")) as store:
        [found] = await findings(store.url.replace("right", SECRET))

    assert found.level is Level.PROBLEM
    assert "rejects the user or password" in found.message
    assert SECRET not in f"{found}"


async def test_cell_gateway_reports_the_hash_of_its_file(tmp_path: Path) -> None:
    """The hash excludes each member's addresses."""
    cell = {"store": f"redis://127.0.0.1:{free_port()}", "member_count": 2}
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, cell=cell), tmp_path) as gateway:
        told = (await gateway.status())["config_hash"]

        assert told == settings_of(gateway.file.read_text()).hash
