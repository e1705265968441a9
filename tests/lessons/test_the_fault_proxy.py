"""The fault proxy injects the configured faults and otherwise forwards everything."""

import asyncio
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest

from testing.fake_engine import Behaviour, FakeEngine
from testing.fault_proxy import Fault, FaultProxy
from tests.lessons.callers import RawCaller

BODY = {"model": "fake", "messages": [], "stream": True, "max_tokens": 3}
CHAT = "/v1/chat/completions"


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as engine:
        yield engine


@pytest.fixture
async def proxy(engine: FakeEngine) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(engine.port) as proxy:
        yield proxy


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as http:
        yield http


async def raw(proxy: FaultProxy, question: bytes = b"POST /v1/chat/completions HTTP/1.1\r\n\r\n") -> bytes:
    """Send a request over a plain socket and return all bytes received, with a suffix if the connection was reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(question)
    got = bytearray()
    try:
        while data := await reader.read(65536):
            got += data
        return bytes(got)
    except ConnectionResetError:
        return bytes(got) + b" and then a reset"
    finally:
        writer.close()


async def test_proxy_without_a_fault_forwards_and_reuses_connections(
    engine: FakeEngine, proxy: FaultProxy, http: aiohttp.ClientSession
) -> None:
    texts = []
    for base in (engine.url, proxy.url, proxy.url):
        async with http.post(base + CHAT, json=BODY) as answer:
            texts.append(await answer.read())

    assert texts[0] == texts[1] == texts[2]
    assert (proxy.connections_total, proxy.connections_open) == (1, 1)
    assert proxy.questions == {b"POST": 2}
    assert proxy.answer.endswith(b"[DONE]\n\n\r\n0\r\n\r\n")
    await http.close()
    await proxy.until_closed()


async def test_proxy_refuses_connections_until_it_listens_again(proxy: FaultProxy) -> None:
    await proxy.stop_listening()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", proxy.port)
    await proxy.listen()

    assert (await raw(proxy, b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert proxy.connections_total == 1


async def test_response_is_closed_or_reset_after_the_given_number_of_bytes(proxy: FaultProxy) -> None:
    for count in (0, 1, 17, 200):
        proxy.fault = Fault(cut_after=count)
        cut = await raw(proxy)
        whole_so_far = proxy.answer
        proxy.fault = Fault(reset_after=count)
        reset = await raw(proxy)

        assert cut == whole_so_far[:count]
        assert reset == whole_so_far[:count] + b" and then a reset"
    await proxy.until_closed()


async def test_bytes_are_counted_per_response(proxy: FaultProxy, http: aiohttp.ClientSession) -> None:
    whole = len(await fetched(http, proxy))
    proxy.fault = Fault(only=b"POST", cut_after=whole + 1_000)

    assert [len(await fetched(http, proxy)) for _ in range(5)] == [whole] * 5
    assert proxy.connections_total == 1


async def test_fault_affects_only_matching_requests(proxy: FaultProxy, http: aiohttp.ClientSession) -> None:
    proxy.fault = Fault(only=b"POST", reset_after=0)

    async with http.get(proxy.url + "/health") as answer:
        assert answer.status == 200
    with pytest.raises(aiohttp.ClientOSError):
        await fetched(http, proxy)


@pytest.mark.parametrize("fault", [Fault(silent_after=0), Fault(silent_after=150), Fault(lost="answer")])
async def test_silent_fault_keeps_the_connection_open(engine: FakeEngine, proxy: FaultProxy, fault: Fault) -> None:
    proxy.fault = fault
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nconnection: close\r\n\r\n")
    await (await engine.next_request()).ended.wait()

    assert await reader.read(65536) if fault.silent_after else True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await reader.read()
    assert proxy.connections_open == 1
    writer.close()
    await proxy.until_closed()


async def test_lost_request_never_reaches_the_engine(engine: FakeEngine, proxy: FaultProxy) -> None:
    proxy.fault = Fault(lost="question")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await raw(proxy)

    assert engine.requests == []
    await proxy.until_closed()


async def test_half_closed_response_ends_only_for_the_client(engine: FakeEngine, proxy: FaultProxy) -> None:
    engine.behaviour = Behaviour(tokens=3, hang_after=2)
    proxy.fault = Fault(half_close_after=10)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    content = b'{"stream":true}'
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(content), content))
    got = await reader.read()
    received = await engine.next_request()
    await received.hung.wait()

    assert len(got) == 10
    assert not received.client_left.is_set()
    writer.close()
    await asyncio.wait_for(received.client_left.wait(), 30)


async def test_delay_and_low_bandwidth_do_not_change_the_response(
    proxy: FaultProxy, http: aiohttp.ClientSession
) -> None:
    whole = await fetched(http, proxy)
    proxy.fault = Fault(delay_s=0.2)
    started = time.monotonic()
    delayed = await fetched(http, proxy)
    delayed_s = time.monotonic() - started
    proxy.fault = Fault(bytes_per_s=len(proxy.answer) / 0.3)
    started = time.monotonic()
    narrow = await fetched(http, proxy)
    narrow_s = time.monotonic() - started

    assert whole == delayed == narrow
    assert delayed_s >= 0.2
    assert narrow_s >= 0.29


@pytest.mark.parametrize("by_reset", [False, True])
async def test_client_disconnect_reaches_the_engine(engine: FakeEngine, proxy: FaultProxy, by_reset: bool) -> None:
    engine.behaviour = Behaviour(hang_before_head=True)
    caller = await RawCaller.to(proxy.url)
    caller.ask(BODY)
    received = await engine.next_request()
    caller.leave(by_reset=by_reset)

    await asyncio.wait_for(received.client_left.wait(), 30)
    await proxy.until_closed()
    assert engine.connections_open == 0


async def test_break_all_resets_open_connections(engine: FakeEngine, proxy: FaultProxy) -> None:
    engine.behaviour = Behaviour(hang_before_head=True)
    asking = asyncio.create_task(raw(proxy))
    received = await engine.next_request()
    proxy.break_all()

    assert await asking == b" and then a reset"
    await asyncio.wait_for(received.client_left.wait(), 30)


async def test_unreachable_engine_looks_like_a_reset(engine: FakeEngine, proxy: FaultProxy) -> None:
    await engine.kill()

    assert await raw(proxy) == b" and then a reset"
    await proxy.until_closed()


async def fetched(http: aiohttp.ClientSession, proxy: FaultProxy) -> bytes:
    async with http.post(proxy.url + CHAT, json=BODY) as answer:
        return await answer.read()
