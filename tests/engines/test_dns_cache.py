"""Known engine addresses stay in use while the resolver is failing, and the failure is reported."""

import asyncio
import socket
from collections.abc import Sequence

import aiohttp
import pytest

from headgate.engines.dns_cache import CACHED_S_MAX, FAILING_S, IN_USE_S_MAX, Address, CachedResolver, DnsCache
from headgate.engines.page import PageUnavailable, get_page, open_session
from headgate.model.endpoint import EndpointProblem
from testing.fake_engine import FakeEngine

HOST, PORT = "engine.test", 8000
SILENT = 0
"""Used as an error number: the resolver does not answer."""


class Resolver:
    """Answers with one address, fails with an error number, or is silent."""

    def __init__(self, error: int | None = None) -> None:
        self.error = error
        self.asked = 0
        self.now_s = 100.0
        self.names = DnsCache(self.look_up, now_s=lambda: self.now_s, answer_s_max=0.01, hosts_max=2)

    async def look_up(self, host: str, port: int) -> Sequence[Address]:
        del host
        self.asked += 1
        if self.error == SILENT:
            await asyncio.Event().wait()
        if self.error is not None:
            raise socket.gaierror(self.error, "simulated failure")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "ignored", ("127.0.0.1", port))]

    async def find(self, host: str = HOST) -> list[str]:
        return [each[4][0] for each in await self.names.addresses(host, PORT)]


@pytest.fixture
async def resolver() -> Resolver:
    """Resolver whose only answer has expired."""
    one = Resolver()
    assert await one.find() == ["127.0.0.1"]
    one.now_s += CACHED_S_MAX + 1
    return one


async def test_answer_is_reused_until_it_expires() -> None:
    resolver = Resolver()
    await resolver.find()
    await resolver.find()
    assert resolver.asked == 1

    resolver.now_s += CACHED_S_MAX + 1
    await resolver.find()
    assert resolver.asked == 2


@pytest.mark.parametrize("error", [SILENT, socket.EAI_AGAIN, socket.EAI_FAIL], ids=["silent", "again", "fail"])
async def test_last_known_address_is_used_while_the_resolver_fails(resolver: Resolver, error: int) -> None:
    resolver.error = error
    assert await resolver.find() == ["127.0.0.1"]
    assert resolver.names.failing() == {}, "one failed lookup is not an outage"

    resolver.now_s += FAILING_S
    assert await resolver.find() == ["127.0.0.1"]
    assert list(resolver.names.failing()) == [HOST]
    assert "its last known addresses stay in use" in resolver.names.failing()[HOST]


async def test_next_answer_ends_the_failure(resolver: Resolver) -> None:
    resolver.error = socket.EAI_AGAIN
    await resolver.find()
    resolver.now_s += FAILING_S
    resolver.error = None
    await resolver.find()

    assert resolver.names.failing() == {}


async def test_unresponsive_resolver_gets_one_lookup_per_host_and_does_not_delay_later_callers(
    resolver: Resolver,
) -> None:
    resolver.error = SILENT
    await resolver.find()
    resolver.now_s += FAILING_S
    waits = asyncio.create_task(resolver.find())
    await asyncio.sleep(0)

    assert waits.done()
    assert resolver.asked == 2


@pytest.mark.parametrize("error", [SILENT, socket.EAI_AGAIN])
async def test_resolver_failure_without_known_addresses_is_temporary(error: int) -> None:
    resolver = Resolver(error)
    with pytest.raises(socket.gaierror) as caught:
        await resolver.find()
    assert caught.value.errno == socket.EAI_AGAIN

    resolver.now_s += FAILING_S
    with pytest.raises(socket.gaierror):
        await resolver.find()
    assert "it has no known address" in resolver.names.failing()[HOST]


async def test_unknown_name_raises_an_error_but_is_not_a_resolver_failure(resolver: Resolver) -> None:
    resolver.error = socket.EAI_NONAME
    with pytest.raises(socket.gaierror):
        await resolver.find()
    resolver.now_s += FAILING_S

    assert resolver.names.failing() == {}


async def test_single_failure_is_not_reported(resolver: Resolver) -> None:
    resolver.error = socket.EAI_AGAIN
    await resolver.find()
    resolver.now_s += FAILING_S

    assert resolver.names.failing() == {}


async def test_old_failure_is_not_counted_with_the_next_one(resolver: Resolver) -> None:
    resolver.error = socket.EAI_AGAIN
    await resolver.find()
    resolver.now_s += 600
    await resolver.find()

    assert resolver.names.failing() == {}


async def test_address_is_not_reused_once_its_name_no_longer_exists(resolver: Resolver) -> None:
    resolver.error = socket.EAI_NONAME
    with pytest.raises(socket.gaierror):
        await resolver.find()
    resolver.error = socket.EAI_AGAIN

    with pytest.raises(socket.gaierror):
        await resolver.find()


async def test_host_no_longer_looked_up_is_not_reported(resolver: Resolver) -> None:
    resolver.error = socket.EAI_AGAIN
    await resolver.find()
    resolver.now_s += IN_USE_S_MAX + 1

    assert resolver.names.failing() == {}


async def test_number_of_known_hosts_is_bounded(resolver: Resolver) -> None:
    resolver.error = socket.EAI_AGAIN
    for name in ("two.test", "three.test"):
        for _ in range(2):
            with pytest.raises(socket.gaierror):
                await resolver.find(name)
    resolver.now_s += FAILING_S

    assert list(resolver.names.failing()) == ["two.test", "three.test"]


@pytest.mark.parametrize("error", [SILENT, socket.EAI_AGAIN])
async def test_probe_without_an_address_does_not_blame_the_engine(error: int) -> None:
    async with open_session(Resolver(error).names) as session:
        with pytest.raises(PageUnavailable) as caught:
            await get_page(session, f"http://{HOST}:{PORT}", "/health", headers={}, timeout_s=5)

    assert caught.value.trouble is None


async def test_probing_a_nonexistent_name_blames_the_address() -> None:
    async with open_session(Resolver(socket.EAI_NONAME).names) as session:
        with pytest.raises(PageUnavailable) as caught:
            await get_page(session, f"http://{HOST}:{PORT}", "/health", headers={}, timeout_s=5)

    assert caught.value.trouble is EndpointProblem.UNREACHABLE


async def test_probe_reaches_the_engine_by_its_name(engine: FakeEngine) -> None:
    async with open_session(Resolver().names) as session:
        page = await get_page(session, f"http://{HOST}:{engine.port}", "/health", headers={}, timeout_s=5)

    assert page.status == 200


async def test_session_gets_addresses_of_the_requested_family() -> None:
    resolver = CachedResolver(Resolver().names)

    assert [each["host"] for each in await resolver.resolve(HOST, PORT, socket.AF_INET)] == ["127.0.0.1"]
    assert await resolver.resolve(HOST, PORT, socket.AF_INET6) == []
    assert isinstance(resolver, aiohttp.abc.AbstractResolver)
    await resolver.close()
