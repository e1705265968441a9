"""Tests for fault injection in the simulated engine server."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from headgate.hosts.local.clock import SystemClock
from headgate.simulation.server.engine_server import EngineServer
from headgate.simulation.server.record import read_record
from tests.simulation.servers import Running, an_engine, events_of, slow, some_options


async def ending(engine: Running, number: int, *, stream: bool = True) -> str:
    """Returns how the response ended, as seen by the client."""
    try:
        async with engine.chat(f"question {number}", stream=stream, max_tokens=30, ignore_eos=True) as answer:
            body = await answer.read()
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, ConnectionResetError, aiohttp.ClientOSError):
        return "broken"
    if answer.status != 200:
        return str(answer.status)
    return "complete" if not stream or events_of(body)[-1] == "[DONE]" else "truncated"


async def endings(*, stream: bool = True, count: int = 20, **options: object) -> list[str]:
    async with an_engine(speed_up=10.0, **options) as engine:
        return [await ending(engine, number, stream=stream) for number in range(count)]


async def test_responses_are_complete_without_faults() -> None:
    assert await endings(count=5) == ["complete"] * 5


@pytest.mark.parametrize("stream", [True, False])
async def test_injected_error_is_sent_before_the_stream(stream: bool) -> None:
    assert await endings(error_rate=1.0, count=3, stream=stream) == ["500"] * 3


@pytest.mark.parametrize("stream", [True, False])
async def test_injected_reset_breaks_the_connection(stream: bool) -> None:
    assert await endings(reset_rate=1.0, count=3, stream=stream) == ["broken"] * 3


async def test_truncated_stream_ends_without_its_final_event() -> None:
    assert await endings(truncate_rate=1.0, count=3) == ["truncated"] * 3
    assert await endings(truncate_rate=1.0, count=3, stream=False) == ["complete"] * 3


async def test_faults_depend_on_the_seed_and_engine_number() -> None:
    rates = {"error_rate": 0.2, "reset_rate": 0.2, "truncate_rate": 0.2}
    first = await endings(seed=1, **rates)

    assert await endings(seed=1, **rates) == first
    assert await endings(seed=2, **rates) != first
    assert await endings(seed=1, number=1, **rates) != first
    assert len(set(first)) == 4


async def test_record_contains_the_injected_fault(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    rates = {"error_rate": 0.2, "reset_rate": 0.2, "truncate_rate": 0.2}
    seen = await endings(seed=1, record_path=path, **rates)
    names = {"finished": "complete", "error": "500", "reset": "broken", "truncated": "truncated"}

    assert [names[str(line["outcome"])] for line in read_record(path)] == seen


async def test_truncated_response_frees_its_slot_and_blocks() -> None:
    async with an_engine(truncate_rate=1.0) as engine:
        await ending(engine, 0)
        await engine.until("vllm:num_requests_running", 0)

        assert await engine.metric("vllm:kv_cache_usage_perc") == 0


async def test_engine_is_not_listening_during_its_cold_start() -> None:
    async with EngineServer(some_options(cold_start_s=2.0), SystemClock()) as server, aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientConnectorError, match="Connect call failed"):
            await http.get(server.url + "/health")
        await server.ready()
        async with http.get(server.url + "/health") as answer:
            assert answer.status == 200


async def test_engine_can_be_stopped_during_its_cold_start() -> None:
    server = EngineServer(some_options(cold_start_s=60.0), SystemClock())
    await server.start()
    await server.stop()

    assert server.port


async def test_stalled_engine_answers_health_checks_but_sends_no_tokens() -> None:
    async def is_silent(answer: aiohttp.ClientResponse) -> bool:
        try:
            async with asyncio.timeout(0.5):
                await answer.content.readany()
        except TimeoutError:
            return True
        return False

    async with an_engine(stall_every_s=0.1, stall_for_s=60.0) as engine:
        async with engine.chat(stream=True, max_tokens=4000, ignore_eos=True) as answer:
            while not await is_silent(answer):
                pass
            async with engine.http.get(engine.url + "/health") as health:
                assert health.status == 200
            assert await engine.metric("vllm:num_requests_running") == 1


async def test_response_completes_after_a_stall() -> None:
    async with an_engine(stall_every_s=0.05, stall_for_s=0.05) as engine:
        assert await ending(engine, 0) == "complete"


async def test_killed_engine_breaks_its_streams_and_stops_listening() -> None:
    async with an_engine(profile=slow()) as engine:
        async with engine.chat(stream=True, max_tokens=1000, ignore_eos=True) as answer:
            await answer.content.readany()
            await engine.server.kill()

            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
        with pytest.raises(aiohttp.ClientConnectorError):
            await engine.http.get(engine.url + "/health")
        await engine.server.start()
        async with engine.http.get(engine.url + "/health") as health:
            assert health.status == 200
