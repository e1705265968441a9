"""A name belongs to one running process, and its successor gets the name within one lease after that process exits."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager

import pytest

from headgate.hosts.cell.redis import connector, name_lease
from headgate.hosts.cell.redis.name_lease import LEASE_S, NameLease, NameTaken
from testing.processes import MissingProgram
from testing.stores import Server, redis, valkey
from tests.hosts.cell.store_places import absent

pytestmark = [pytest.mark.cell, pytest.mark.timeout(240)]

KEY = "{headgate:c}:name:gw"
LONG_S = 60.0
"""Lease or store timeout in seconds, longer than the machine ever stalls."""
SHORT_S = 0.5
"""Lease in seconds, short enough for a test to wait for it."""


@pytest.fixture(params=[redis, valkey], ids=["redis", "valkey"], scope="module")
def server(request: pytest.FixtureRequest) -> Generator[Server]:
    try:
        with request.param() as started:
            yield started
    except MissingProgram as missing:
        absent(missing)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises the timeouts, because names are not checked while a slow store counts as unavailable."""
    for module, name in (
        (name_lease, "_CONNECT_S_MAX"),
        (name_lease, "_ANSWER_S_MAX"),
        (connector, "CONNECT_S_MAX"),
        (connector, "SILENCE_S_MAX"),
    ):
        monkeypatch.setattr(module, name, LONG_S)


@pytest.fixture(autouse=True)
def no_names(server: Server) -> None:
    with server.client() as client:
        client.delete(KEY)


def a_lease(
    server: Server, incarnation: str, on_lost: Callable[[str], None] = pytest.fail, *, lease_s: float = LEASE_S
) -> NameLease:
    return NameLease(
        server.url,
        cell="c",
        member="gw",
        incarnation=incarnation,
        on_lost=on_lost,
        lease_s=lease_s,
        renew_s=0.05,
        poll_s=0.02,
    )


@asynccontextmanager
async def kept(lease: NameLease) -> AsyncIterator[None]:
    task = asyncio.create_task(lease.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        # A task that is cancelled before its first step does not close the lease.
        lease.close()


def holder(server: Server) -> bytes | None:
    with server.client() as client:
        return client.get(KEY)


def expires_ms(server: Server) -> int:
    with server.client() as client:
        return client.pttl(KEY)


def scripts_run(server: Server) -> int:
    with server.client() as client:
        return client.info("commandstats").get("cmdstat_eval", {}).get("calls", 0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_second_process_with_the_same_name_is_rejected_and_told_which_setting_to_change(server: Server) -> None:
    first = a_lease(server, "1", lease_s=LONG_S)
    await first.claim()
    async with kept(first):
        with pytest.raises(NameTaken, match=r'is named "gw"; set a different cell.member_name') as refused:
            await a_lease(server, "2", lease_s=LONG_S).claim()

        assert (refused.value.errno, holder(server)) == (0, b"1")


async def test_process_gets_the_name_of_a_killed_process_within_one_lease(server: Server) -> None:
    killed = a_lease(server, "killed", lease_s=SHORT_S)
    await killed.claim()
    killed.close()
    began = time.monotonic()
    second = a_lease(server, "2", lease_s=LONG_S)
    await second.claim()

    second.close()

    assert holder(server) == b"2"
    assert time.monotonic() - began < 30


async def test_leaving_process_releases_its_name(server: Server) -> None:
    first = a_lease(server, "1")
    await first.claim()
    async with kept(first):
        await asyncio.sleep(0.01)

    assert holder(server) is None


async def test_running_process_is_notified_once_if_another_process_renews_its_name(server: Server) -> None:
    told: list[str] = []
    first, second = a_lease(server, "1", told.append, lease_s=LONG_S), a_lease(server, "2", lease_s=LONG_S)
    await first.claim()
    with server.client() as client:
        client.delete(KEY)
    await second.claim()
    async with kept(second), kept(first):
        await until(lambda: bool(told))

    assert len(told) == 1
    assert "different cell.member_name" in told[0]
    assert holder(server) is None


async def test_process_keeps_its_name_despite_an_old_entry_that_is_not_renewed(server: Server) -> None:
    first = a_lease(server, "1")
    await first.claim()
    with server.client() as client:
        client.set(KEY, b"an earlier life", px=300)
    async with kept(first):
        await until(lambda: holder(server) == b"1")


async def test_entry_without_an_expiry_is_replaced(server: Server) -> None:
    with server.client() as client:
        client.set(KEY, b"foreign")
    lease = a_lease(server, "1", lease_s=LONG_S)
    await lease.claim()
    lease.close()

    assert holder(server) == b"1"


async def test_running_process_keeps_its_name_when_the_store_clock_moves_backwards(server: Server) -> None:
    first = a_lease(server, "1", lease_s=LONG_S)
    await first.claim()
    with server.client() as client:
        client.pexpire(KEY, 3_600_000)
    second = asyncio.create_task(a_lease(server, "2", lease_s=LONG_S).claim())
    await until(lambda: expires_ms(server) <= LONG_S * 1_000)
    async with kept(first):
        with pytest.raises(NameTaken):
            await second

        assert holder(server) == b"1"


async def test_process_gets_the_name_of_a_killed_process_after_the_store_clock_moves_backwards(server: Server) -> None:
    with server.client() as client:
        client.set(KEY, b"killed", px=3_600_000)
    second = a_lease(server, "2", lease_s=SHORT_S)
    await second.claim()
    assert second._claim.is_held
    # Its own entry may have expired by now because it was not renewed.
    async with kept(second):
        await until(lambda: holder(server) == b"2")


async def test_process_gets_the_name_of_a_killed_process_even_if_its_last_renewal_arrives_late(server: Server) -> None:
    with server.client() as client:
        client.set(KEY, b"killed", px=round(LONG_S * 1_000))
    before = scripts_run(server)
    second = a_lease(server, "2", lease_s=LONG_S)
    claim = asyncio.create_task(second.claim())
    await until(lambda: scripts_run(server) > before + 1)
    with server.client() as client:
        client.pexpire(KEY, round(1.5 * LONG_S * 1_000))
        extended = scripts_run(server)
    await until(lambda: scripts_run(server) > extended + 1)
    # The claim waits until the entry has expired.
    with server.client() as client:
        client.pexpire(KEY, 100)
    await claim
    second.close()

    assert holder(server) == b"2"


async def test_claim_succeeds_without_a_check_while_the_store_is_unreachable() -> None:
    def nobody(_: str) -> None:
        raise AssertionError

    lease = NameLease("redis://127.0.0.1:1", cell="c", member="gw", incarnation="1", on_lost=nobody)
    await lease.claim()


async def test_claim_tolerates_a_key_with_another_redis_type(server: Server) -> None:
    with server.client() as client:
        client.lpush(KEY, b"foreign")
    lease = a_lease(server, "1")
    await lease.claim()
    async with kept(lease):
        await asyncio.sleep(0.05)
        with server.client() as client:
            client.delete(KEY)
        await until(lambda: holder(server) == b"1")
