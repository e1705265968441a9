"""Does the proxy between gateway and engine do the faults it says it does, and none otherwise?"""

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
    """What a plain socket gets until the end; raises where it is reset."""
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


async def test_without_a_fault_all_passes_and_connections_are_kept(
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


async def test_who_is_refused_finds_nobody_until_it_listens_again(proxy: FaultProxy) -> None:
    await proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", proxy.port)
    await proxy.listen()

    assert (await raw(proxy, b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert proxy.connections_total == 1


async def test_an_answer_is_cut_or_reset_after_exactly_so_many_bytes(proxy: FaultProxy) -> None:
    for count in (0, 1, 17, 200):
        proxy.fault = Fault(cut_after=count)
        cut = await raw(proxy)
        whole_so_far = proxy.answer
        proxy.fault = Fault(reset_after=count)
        reset = await raw(proxy)

        assert cut == whole_so_far[:count]
        assert reset == whole_so_far[:count] + b" and then a reset"
    await proxy.until_closed()


async def test_bytes_are_counted_anew_for_each_answer(proxy: FaultProxy, http: aiohttp.ClientSession) -> None:
    whole = len(await fetched(http, proxy))
    proxy.fault = Fault(only=b"POST", cut_after=whole + 1_000)

    assert [len(await fetched(http, proxy)) for _ in range(5)] == [whole] * 5
    assert proxy.connections_total == 1


async def test_a_fault_befalls_only_what_it_is_meant_for(proxy: FaultProxy, http: aiohttp.ClientSession) -> None:
    proxy.fault = Fault(only=b"POST", reset_after=0)

    async with http.get(proxy.url + "/health") as answer:
        assert answer.status == 200
    with pytest.raises(aiohttp.ClientOSError):
        await fetched(http, proxy)


@pytest.mark.parametrize("fault", [Fault(silent_after=0), Fault(silent_after=150), Fault(lost="answer")])
async def test_silence_is_not_an_end(engine: FakeEngine, proxy: FaultProxy, fault: Fault) -> None:
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


async def test_a_lost_question_never_arrives(engine: FakeEngine, proxy: FaultProxy) -> None:
    proxy.fault = Fault(lost="question")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await raw(proxy)

    assert engine.requests == []
    await proxy.until_closed()


async def test_a_half_closed_answer_ends_for_the_client_alone(engine: FakeEngine, proxy: FaultProxy) -> None:
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


async def test_a_delay_and_a_narrow_line_only_take_time(proxy: FaultProxy, http: aiohttp.ClientSession) -> None:
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
async def test_a_client_that_leaves_is_gone_for_the_engine_too(
    engine: FakeEngine, proxy: FaultProxy, by_reset: bool
) -> None:
    engine.behaviour = Behaviour(hang_before_head=True)
    caller = await RawCaller.to(proxy.url)
    caller.ask(BODY)
    received = await engine.next_request()
    caller.leave(by_reset=by_reset)

    await asyncio.wait_for(received.client_left.wait(), 30)
    await proxy.until_closed()
    assert engine.connections_open == 0


async def test_breaking_all_resets_what_is_open(engine: FakeEngine, proxy: FaultProxy) -> None:
    engine.behaviour = Behaviour(hang_before_head=True)
    asking = asyncio.create_task(raw(proxy))
    received = await engine.next_request()
    proxy.break_all()

    assert await asking == b" and then a reset"
    await asyncio.wait_for(received.client_left.wait(), 30)


async def test_an_engine_that_is_away_looks_like_a_reset(engine: FakeEngine, proxy: FaultProxy) -> None:
    await engine.kill()

    assert await raw(proxy) == b" and then a reset"
    await proxy.until_closed()


async def fetched(http: aiohttp.ClientSession, proxy: FaultProxy) -> bytes:
    async with http.post(proxy.url + CHAT, json=BODY) as answer:
        return await answer.read()
