"""What does an engine cost that hangs while its health page answers?

A router that believes the health page sends a share of all requests into the hole, for as long as it lasts.
"""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import NO_TARGETS, RunningGateway, a_config, chat, events_of, gateway_in_loop
from testing.stalls import again_if_stalled

CONNECT_S_MAX = 5.0


@contextmanager
def unanswered(port: int) -> Iterator[None]:
    """A listener that accepts nobody, with its queue full: whoever connects hears nothing at all."""
    callers: list[socket.socket] = []
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen(0)
        for _ in range(8):
            callers.append(caller := socket.socket())
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.1", port))
        try:
            yield
        finally:
            for caller in callers:
                caller.close()


async def streamed(gateway: RunningGateway) -> tuple[int, str, list[str]]:
    """Status, attempts and events of one streamed answer."""
    async with gateway.post(chat(stream=True)) as answer:
        return answer.status, answer.headers["x-headgate-attempts"], events_of(await answer.read())


async def health_of(engine: FakeEngine, http: aiohttp.ClientSession) -> int:
    async with http.get(engine.url + "/health") as answer:
        return answer.status


@pytest.mark.timing
@again_if_stalled
async def test_an_address_that_does_not_answer_is_given_up_in_time_for_another(tmp_path: Path) -> None:
    async with FakeEngine() as gone, FakeEngine() as other:
        async with gateway_in_loop(a_config(gone.url, other.url), tmp_path) as gateway:
            await gone.kill()
            with unanswered(gone.port):
                started = time.monotonic()
                answers = await asyncio.gather(*(streamed(gateway) for _ in range(2)))
                lasted_s = time.monotonic() - started

    assert sorted(attempts for _, attempts, _ in answers) == ["1", "2"]
    assert [events[-1] for _, _, events in answers] == ["[DONE]"] * 2
    assert CONNECT_S_MAX - 1 < lasted_s < CONNECT_S_MAX + 3


async def test_no_first_token_in_time_sends_the_request_elsewhere_and_soon_ejects_the_engine(tmp_path: Path) -> None:
    classes = {"interactive": {"band": 0, **NO_TARGETS, "first_token_max": "2s"}}
    config = a_config("x", classes=classes, health={"failures_max": 3, "eject": "1m"})
    async with FakeEngine() as hung, FakeEngine() as other:
        config["pools"]["small"]["endpoints"] = [hung.url, other.url]
        async with gateway_in_loop(config, tmp_path) as gateway:
            hung.behaviour = Behaviour(hang_after=0)
            answers = [await asyncio.gather(*(streamed(gateway) for _ in range(2))) for _ in range(3)]
            status = await gateway.status()
            assert await health_of(hung, gateway.http) == 200
            taken = len(hung.requests)
            later = [await streamed(gateway) for _ in range(8)]

    assert [events[-1] for pair in answers for _, _, events in pair] == ["[DONE]"] * 6
    assert [each["state"] for each in status["endpoints"]] == ["ejected", "ready"]
    assert len(hung.requests) == taken, "an ejected engine gets nothing"
    assert [attempts for _, attempts, _ in later] == ["1"] * 8


async def test_silence_in_the_middle_of_a_stream_ends_it_honestly_and_counts_against_the_engine(tmp_path: Path) -> None:
    classes = {"interactive": {"band": 0, **NO_TARGETS, "idle_max": "2s"}}
    config = a_config("x", classes=classes, health={"failures_max": 1, "eject": "1m"})
    async with FakeEngine() as hung:
        config["pools"]["small"]["endpoints"] = [hung.url]
        async with gateway_in_loop(config, tmp_path) as gateway:
            hung.behaviour = Behaviour(tokens=5, hang_after=2)
            _, _, events = await streamed(gateway)
            status = await gateway.status()
            assert await health_of(hung, gateway.http) == 200

    assert len(events) == 3
    assert '"stream_interrupted"' in events[-1]
    assert status["endpoints"][0]["state"] == "ejected"


async def test_an_engine_without_progress_is_ejected_long_before_its_streams_are_given_up(tmp_path: Path) -> None:
    """Progress is what counts: its streams could be silent for half a minute each, the engine as a whole may not."""
    config = a_config("x", health={"stall_max": "2s", "eject": "1m"})
    async with FakeEngine() as hung, FakeEngine() as other:
        config["pools"]["small"]["endpoints"] = [hung.url, other.url]
        async with gateway_in_loop(config, tmp_path) as gateway:
            hung.behaviour = Behaviour(tokens=5, hang_after=2)
            waiting = asyncio.gather(*(streamed(gateway) for _ in range(2)))
            await (await hung.next_request()).hung.wait()
            # Before the 30 s are over after which the streams themselves would be given up.
            await gateway.until(lambda status: status["endpoints"][0]["state"] == "ejected", seconds_max=25)
            assert await health_of(hung, gateway.http) == 200
            later = [await streamed(gateway) for _ in range(6)]
            ends = sorted(events[-1] == "[DONE]" for _, _, events in await waiting)

    assert [(attempts, events[-1]) for _, attempts, events in later] == [("1", "[DONE]")] * 6
    assert ends == [False, True], "the stream that had begun there is interrupted, and says so"


async def test_comments_that_keep_a_connection_alive_are_no_progress(tmp_path: Path) -> None:
    classes = {"interactive": {"band": 0, **NO_TARGETS, "first_token_max": "2s"}}
    async with FakeEngine() as hung, FakeEngine() as other:
        async with gateway_in_loop(a_config(hung.url, other.url, classes=classes), tmp_path) as gateway:
            hung.behaviour = Behaviour(hang_after=0, comment_s=0.05)
            answers = await asyncio.gather(*(streamed(gateway) for _ in range(2)))

    assert sorted(attempts for _, attempts, _ in answers) == ["1", "2"]
    assert [events[-1] for _, _, events in answers] == ["[DONE]"] * 2
