"""Do the members of a cell know where each of them is asked, and nobody else's address?"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager

import pytest

from headgate.hosts.cell.redis import connect
from headgate.hosts.cell.redis import registry as cell_registry
from headgate.hosts.cell.redis.registry import EXPIRES_S, CellMember, Registry, read
from testing.processes import MissingPart
from testing.stores import Server, redis
from tests.hosts.cell.store_places import absent

pytestmark = [pytest.mark.cell, pytest.mark.timeout(240)]


@contextlib.contextmanager
def a_redis() -> Generator[Server]:
    try:
        with redis() as server:
            yield server
    except MissingPart as missing:
        absent(missing)


@asynccontextmanager
async def running(
    server: Server, member: str, host: str = "127.0.0.1", *, leads: bool = False, expires_s: int = EXPIRES_S
) -> AsyncIterator[Registry]:
    registry = Registry(
        server.url,
        cell="c",
        member=member,
        admin=lambda: (host, 9090),
        leads=lambda: leads,
        every_s=0.02,
        expires_s=expires_s,
    )
    task = asyncio.create_task(registry.run())
    try:
        yield registry
    finally:
        task.cancel()
        [ended] = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended


async def until(registry: Registry, *wanted: CellMember) -> None:
    async with asyncio.timeout(60):
        while registry.members() != list(wanted):
            await asyncio.sleep(0.01)


async def test_each_knows_all_and_one_that_leaves_is_gone() -> None:
    one, two = CellMember("gw-1", "127.0.0.1:9090", True), CellMember("gw-2", "[::1]:9090", False)
    with a_redis() as server:
        async with running(server, "gw-1", leads=True) as first:
            async with running(server, "gw-2", "::1") as second:
                await until(first, one, two)
                await until(second, one, two)
            await until(first, one)


async def test_one_that_listens_everywhere_is_reached_as_the_store_reaches_it() -> None:
    with a_redis() as server:
        async with running(server, "gw-1", "0.0.0.0") as registry:
            await until(registry, CellMember("gw-1", "127.0.0.1:9090", leads=False))


async def test_one_that_was_killed_is_forgotten_and_what_is_foreign_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A slow store counts as away, and then a member that leaves stays in it until it expires.
    for module, name in ((cell_registry, "_ANSWER_S_MAX"), (connect, "CONNECT_S_MAX"), (connect, "SILENCE_S_MAX")):
        monkeypatch.setattr(module, name, 60.0)
    with a_redis() as server:
        with server.client() as client:
            client.hset("{headgate:c}:admin", "killed", "1 0 127.0.0.1:1")
            client.hset("{headgate:c}:admin", "foreign", "99999999999999 0 http://evil/path?x=")
        async with running(server, "gw-1", expires_s=60) as registry:
            await until(registry, CellMember("gw-1", "127.0.0.1:9090", leads=False))
        with server.client() as client:
            assert client.hkeys("{headgate:c}:admin") == [b"foreign"]
            assert 0 < client.pttl("{headgate:c}:admin") <= 60_000


async def test_a_store_that_was_away_is_found_again() -> None:
    with a_redis() as server:
        server.kill()
        async with running(server, "gw-1") as registry:
            assert registry.members() == []
            await asyncio.to_thread(server.restart)
            await until(registry, CellMember("gw-1", "127.0.0.1:9090", leads=False))


async def test_one_that_leaves_while_the_store_does_not_answer_leaves_in_peace() -> None:
    with a_redis() as server:
        async with running(server, "gw-1") as registry:
            await until(registry, CellMember("gw-1", "127.0.0.1:9090", leads=False))
            server.pause()
            # It asks every 20 ms, and waits half a second for each answer.
            await asyncio.sleep(0.05)
        server.resume()


async def test_addresses_that_were_not_renewed_are_not_told() -> None:
    with a_redis() as server:
        async with running(server, "gw-1", expires_s=1) as registry:
            await until(registry, CellMember("gw-1", "127.0.0.1:9090", leads=False))
            server.pause()
            await until(registry)
            server.resume()


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        [b"gw", 1],
        [b"gw"],
        [b"gw\n", b"1 0 h:1"],
        [b"gw", b"1 0 h"],
        [b"gw", b"1 2 h:1"],
        [b"gw", b"1 0 h:1/x"],
        [b"gw", b"1 0 u@h:1"],
        [b"gw", b"1 0 h:1\n"],
        [b"\xff", b"1 0 h:1"],
    ],
)
def test_only_what_a_member_writes_is_read(answer: object) -> None:
    assert read(answer) == ()


def test_no_more_are_read_than_may_be() -> None:
    answer = [part for number in range(300) for part in (f"gw-{number}".encode(), b"1 1 h:1")]

    assert len(read(answer)) == cell_registry.MEMBERS_MAX


def address_of(host: str, local_host: str | None) -> str:
    registry = Registry("redis://10.0.0.9", cell="c", member="gw-1", admin=lambda: (host, 9090), leads=lambda: False)
    return registry._address(local_host)


def test_an_address_that_only_its_own_machine_reaches_is_not_told_to_others(caplog: pytest.LogCaptureFixture) -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        caplog.clear()
        assert address_of(host, "10.0.0.2") == "-"
        [warning] = caplog.messages
        assert warning.startswith(f"admin_listen is on {host}, where other machines of the cell cannot ask")
    [member] = read([b"gw-2", b"99999999999999 1 -"])
    assert member == CellMember("gw-2", "", leads=True)


def test_beside_the_store_loopback_reaches_everybody() -> None:
    assert address_of("127.0.0.1", "127.0.0.1") == "127.0.0.1:9090"
    assert address_of("127.0.0.1", None) == "127.0.0.1:9090"
    assert address_of("0.0.0.0", None) == "127.0.0.1:9090"
    assert address_of("0.0.0.0", "10.0.0.2") == "10.0.0.2:9090"
    assert address_of("10.0.0.2", "10.0.0.2") == "10.0.0.2:9090"


def test_it_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry("redis://h", cell="c", member="gw-1", admin=lambda: ("::1", 1), leads=lambda: False)
    assert [registry._address("10.0.0.2") for _ in range(2)] == ["-", "-"]
    assert len(caplog.messages) == 1
