"""Engine failures are distinguished from failures in the gateway process."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator

import pytest

from headgate.engines.dns_cache import CACHED_S_MAX, DnsCache
from headgate.engines.faults import fault_of
from headgate.model.fault import Fault
from headgate.ports.engine import EngineFault
from testing.descriptors import no_descriptors_left
from testing.fake_engine import Behaviour, FakeEngine
from testing.ports import free_port
from tests.engines.calls import Engines, a_call, read_all
from tests.engines.listeners import listening


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (None, Fault.CONNECTION),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), Fault.CONNECTION),
        (ConnectionResetError(errno.ECONNRESET, "reset"), Fault.CONNECTION),
        (OSError("several"), Fault.CONNECTION),
        (OSError(errno.EMFILE, "too many"), Fault.GATEWAY),
        (OSError(errno.ENFILE, "too many"), Fault.GATEWAY),
        (OSError(errno.ENOMEM, "no memory"), Fault.GATEWAY),
        (OSError(errno.ENOSPC, "no space"), Fault.GATEWAY),
        (OSError(errno.EADDRNOTAVAIL, "no port"), Fault.GATEWAY),
        (MemoryError(), Fault.GATEWAY),
        (socket.gaierror(socket.EAI_AGAIN, "the resolver does not answer"), Fault.GATEWAY),
        (socket.gaierror(socket.EAI_NONAME, "no such name"), Fault.CONNECTION),
    ],
)
def test_local_resource_errors_are_classified_as_gateway_faults(error: BaseException | None, fault: Fault) -> None:
    assert fault_of(error, Fault.CONNECTION) is fault


@pytest.fixture
async def engines() -> AsyncIterator[Engines]:
    async with Engines() as engines:
        yield engines


async def fault_at(engines: Engines, url: str) -> Fault:
    with pytest.raises(EngineFault) as caught:
        await read_all(await engines(url).ask(a_call()))
    return caught.value.fault


async def test_refused_connection_is_classified_as_a_connection_fault(engines: Engines) -> None:
    assert await fault_at(engines, f"http://127.0.0.1:{free_port()}") is Fault.CONNECTION


async def test_connection_closed_before_a_response_is_classified_as_a_connection_fault(
    engine: FakeEngine, engines: Engines
) -> None:
    engine.behaviour = Behaviour(drop_before_head=True)

    assert await fault_at(engines, engine.url) is Fault.CONNECTION


async def test_truncated_response_is_classified_as_a_response_fault(engines: Engines) -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")

    async with listening(break_off) as url:
        assert await fault_at(engines, url) is Fault.RESPONSE


async def test_running_out_of_descriptors_is_classified_as_a_gateway_fault(
    engine: FakeEngine, engines: Engines
) -> None:
    asked = engines(engine.url)
    with no_descriptors_left(), pytest.raises(EngineFault, match="too many open files") as caught:
        await asked.ask(a_call())

    assert caught.value.fault is Fault.GATEWAY
    assert (await asked.ask(a_call())).status == 200


async def test_known_addresses_are_used_while_the_resolver_fails(
    engine: FakeEngine, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing: list[int] = []

    async def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        if failing:
            raise socket.gaierror(failing[0], "simulated failure")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", engine.port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    now = [0.0]
    names = DnsCache(now_s=lambda: now[0])
    asked = engines(f"http://engine.test:{engine.port}", names=names)
    engine.behaviour = Behaviour(drop_before_head=True)
    for failure, reached in ((None, 1), (socket.EAI_AGAIN, 2), (socket.EAI_NONAME, 2)):
        failing[:] = [] if failure is None else [failure]
        now[0] += CACHED_S_MAX + 1
        with pytest.raises(EngineFault) as caught:
            await asked.ask(a_call())
        assert caught.value.fault is Fault.CONNECTION
        assert len(engine.requests) == reached, "a name that no longer exists is not requested at its old address"


async def test_resolver_failure_without_known_addresses_is_classified_as_a_gateway_fault(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        raise socket.gaierror(socket.EAI_AGAIN, "simulated failure")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    assert await fault_at(engines, "http://engine.test") is Fault.GATEWAY
