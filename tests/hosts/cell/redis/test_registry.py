"""Tests for the registry of member admin addresses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager

import pytest

from headgate.hosts.cell.redis import connector
from headgate.hosts.cell.redis import registry as cell_registry
from headgate.hosts.cell.redis.registry import ENTRY_EXPIRES_S, CellMember, MemberRegistry, parse_members
from testing.processes import MissingProgram
from testing.stores import Server, redis
from tests.hosts.cell.store_places import absent

pytestmark = [pytest.mark.cell, pytest.mark.timeout(240)]


@contextlib.contextmanager
def a_redis() -> Generator[Server]:
    try:
        with redis() as server:
            yield server
    except MissingProgram as missing:
        absent(missing)


@asynccontextmanager
async def running(
    server: Server, member: str, host: str = "127.0.0.1", *, leads: bool = False, expires_s: int = ENTRY_EXPIRES_S
) -> AsyncIterator[MemberRegistry]:
    registry = MemberRegistry(
        server.url,
        cell="c",
        member=member,
        admin=lambda: (host, 9090),
        is_leader=lambda: leads,
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


async def until(registry: MemberRegistry, *wanted: CellMember) -> None:
    async with asyncio.timeout(60):
        while registry.members() != list(wanted):
            await asyncio.sleep(0.01)


async def test_registry_lists_all_members_until_they_leave() -> None:
    one, two = CellMember("gw-1", "127.0.0.1:9090", True), CellMember("gw-2", "[::1]:9090", False)
    with a_redis() as server:
        async with running(server, "gw-1", leads=True) as first:
            async with running(server, "gw-2", "::1") as second:
                await until(first, one, two)
                await until(second, one, two)
            await until(first, one)


async def test_wildcard_listener_is_registered_with_its_local_address_on_the_store_connection() -> None:
    with a_redis() as server:
        async with running(server, "gw-1", "0.0.0.0") as registry:
            await until(registry, CellMember("gw-1", "127.0.0.1:9090", is_leader=False))


async def test_expired_members_are_removed_and_foreign_values_are_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # If a slow store counted as unreachable, a leaving member would stay registered until its entry expires.
    for module, name in ((cell_registry, "_ANSWER_S_MAX"), (connector, "CONNECT_S_MAX"), (connector, "SILENCE_S_MAX")):
        monkeypatch.setattr(module, name, 60.0)
    with a_redis() as server:
        with server.client() as client:
            client.hset("{headgate:c}:admin", "killed", "1 0 127.0.0.1:1")
            client.hset("{headgate:c}:admin", "foreign", "99999999999999 0 http://evil/path?x=")
        async with running(server, "gw-1", expires_s=60) as registry:
            await until(registry, CellMember("gw-1", "127.0.0.1:9090", is_leader=False))
        with server.client() as client:
            assert client.hkeys("{headgate:c}:admin") == [b"foreign"]
            assert 0 < client.pttl("{headgate:c}:admin") <= 60_000


async def test_registry_reconnects_after_a_store_outage() -> None:
    with a_redis() as server:
        server.kill()
        async with running(server, "gw-1") as registry:
            assert registry.members() == []
            await asyncio.to_thread(server.restart)
            await until(registry, CellMember("gw-1", "127.0.0.1:9090", is_leader=False))


async def test_member_can_leave_while_the_store_does_not_respond() -> None:
    with a_redis() as server:
        async with running(server, "gw-1") as registry:
            await until(registry, CellMember("gw-1", "127.0.0.1:9090", is_leader=False))
            server.pause()
            # The registry queries the store every 20 ms and waits up to 0.5 s for each reply.
            await asyncio.sleep(0.05)
        server.resume()


async def test_unrenewed_addresses_are_not_listed() -> None:
    with a_redis() as server:
        async with running(server, "gw-1", expires_s=1) as registry:
            await until(registry, CellMember("gw-1", "127.0.0.1:9090", is_leader=False))
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
        [b"gw", b"1 0 http://h:1"],
        [b"gw", b"1 0 https://"],
        [b"gw", b"1 0 h:1\n"],
        [b"\xff", b"1 0 h:1"],
    ],
)
def test_malformed_registry_reply_is_ignored(answer: object) -> None:
    assert parse_members(answer) == ()


def test_number_of_registered_members_is_limited() -> None:
    answer = [part for number in range(300) for part in (f"gw-{number}".encode(), b"1 1 h:1")]

    assert len(parse_members(answer)) == cell_registry.MEMBERS_MAX


def address_of(host: str, local_host: str | None) -> str:
    registry = MemberRegistry(
        "redis://10.0.0.9", cell="c", member="gw-1", admin=lambda: (host, 9090), is_leader=lambda: False
    )
    return registry._address(local_host)


def test_loopback_address_is_not_registered_for_other_machines(caplog: pytest.LogCaptureFixture) -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        caplog.clear()
        assert address_of(host, "10.0.0.2") == "-"
        [warning] = caplog.messages
        assert warning.startswith(f"admin_listen is on {host}, so other machines in the cell cannot query")
    [member] = parse_members([b"gw-2", b"99999999999999 1 -"])
    assert member == CellMember("gw-2", "", is_leader=True)


def test_loopback_address_is_registered_on_the_stores_own_machine() -> None:
    assert address_of("127.0.0.1", "127.0.0.1") == "127.0.0.1:9090"
    assert address_of("127.0.0.1", None) == "127.0.0.1:9090"
    assert address_of("0.0.0.0", None) == "127.0.0.1:9090"
    assert address_of("0.0.0.0", "10.0.0.2") == "10.0.0.2:9090"
    assert address_of("10.0.0.2", "10.0.0.2") == "10.0.0.2:9090"


def test_address_of_a_listener_with_tls_has_its_scheme() -> None:
    registry = MemberRegistry(
        "redis://h", cell="c", member="gw-1", admin=lambda: ("0.0.0.0", 9090), is_leader=lambda: False, https=True
    )
    address = registry._address("10.0.0.2")

    assert address == "https://10.0.0.2:9090"
    assert parse_members([b"gw-1", f"1 0 {address}".encode()]) == (CellMember("gw-1", address, is_leader=False),)


def test_loopback_warning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    registry = MemberRegistry("redis://h", cell="c", member="gw-1", admin=lambda: ("::1", 1), is_leader=lambda: False)
    assert [registry._address("10.0.0.2") for _ in range(2)] == ["-", "-"]
    assert len(caplog.messages) == 1
