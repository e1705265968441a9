"""An engine that hangs is ejected, whether or not its health page responds.

A router that trusts the health page would send a share of all requests to the hung engine for as long as it hangs. A
router that only counts failed requests would not notice a hung engine whose callers disconnect early.
"""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from headgate.engines.engine_watch import EngineWatch
from testing.fake_engine import Behaviour, FakeEngine
from testing.fault_proxy import Fault, FaultProxy
from testing.gateway import NO_TARGETS, RunningGateway, a_config, chat, events_of, gateway_in_loop
from testing.stalls import rerun_if_stalled

CONNECT_S_MAX = 5.0
CALLER_S_MAX = 1.0
frequently_probing_gateway = partial(gateway_in_loop, open_watch=partial(EngineWatch, interval_s=0.2, timeout_s=1.0))


@contextmanager
def unanswered(port: int) -> Iterator[None]:
    """Listener with a full backlog that never accepts, so that connection attempts go unanswered."""
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
    """Send a streaming request and return its status, attempts and events."""
    async with gateway.post(chat(stream=True)) as answer:
        return answer.status, answer.headers["x-headgate-attempts"], events_of(await answer.read())


async def health_of(engine: FakeEngine, http: aiohttp.ClientSession) -> int:
    async with http.get(engine.url + "/health") as answer:
        return answer.status


@pytest.mark.timing
@rerun_if_stalled
async def test_request_is_retried_after_the_connect_timeout(tmp_path: Path) -> None:
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


async def test_first_token_timeout_retries_the_request_and_ejects_the_engine(tmp_path: Path) -> None:
    classes = {"interactive": {"priority_band": 0, **NO_TARGETS, "first_token_timeout": "2s"}}
    config = a_config("x", classes=classes, health={"consecutive_failures_max": 3, "ejection_time": "1m"})
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
    assert len(hung.requests) == taken, "an ejected engine must get no requests"
    assert [attempts for _, attempts, _ in later] == ["1"] * 8


async def test_stall_during_a_stream_interrupts_it_and_ejects_the_engine(tmp_path: Path) -> None:
    classes = {"interactive": {"priority_band": 0, **NO_TARGETS, "stream_idle_timeout": "2s"}}
    config = a_config("x", classes=classes, health={"consecutive_failures_max": 1, "ejection_time": "1m"})
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


async def test_engine_without_progress_is_ejected_before_its_streams_time_out(tmp_path: Path) -> None:
    """Each stream may be silent for 30 s, but the engine as a whole must make progress."""
    config = a_config("x", health={"stall_timeout": "2s", "ejection_time": "1m"})
    async with FakeEngine() as hung, FakeEngine() as other:
        config["pools"]["small"]["endpoints"] = [hung.url, other.url]
        async with gateway_in_loop(config, tmp_path) as gateway:
            hung.behaviour = Behaviour(tokens=5, hang_after=2)
            waiting = asyncio.gather(*(streamed(gateway) for _ in range(2)))
            await (await hung.next_request()).hung.wait()
            # The streams would time out after 30 s.
            await gateway.wait_for_status(lambda status: status["endpoints"][0]["state"] == "ejected", seconds_max=25)
            assert await health_of(hung, gateway.http) == 200
            later = [await streamed(gateway) for _ in range(6)]
            ends = sorted(events[-1] == "[DONE]" for _, _, events in await waiting)

    assert [(attempts, events[-1]) for _, attempts, events in later] == [("1", "[DONE]")] * 6
    assert ends == [False, True], "the stream at the hung engine must end with an error event"


async def test_keep_alive_comments_are_not_counted_as_progress(tmp_path: Path) -> None:
    classes = {"interactive": {"priority_band": 0, **NO_TARGETS, "first_token_timeout": "2s"}}
    async with FakeEngine() as hung, FakeEngine() as other:
        async with gateway_in_loop(a_config(hung.url, other.url, classes=classes), tmp_path) as gateway:
            hung.behaviour = Behaviour(hang_after=0, comment_s=0.05)
            answers = await asyncio.gather(*(streamed(gateway) for _ in range(2)))

    assert sorted(attempts for _, attempts, _ in answers) == ["1", "2"]
    assert [events[-1] for _, _, events in answers] == ["[DONE]"] * 2


async def leaves_early(gateway: RunningGateway) -> bool:
    """Send a request and disconnect after a second. Returns whether the response was complete by then."""
    try:
        async with asyncio.timeout(CALLER_S_MAX):
            status, _, _ = await streamed(gateway)
    except TimeoutError:
        return False
    return status == 200


@pytest.mark.timing
@rerun_if_stalled
async def test_hung_engine_is_ejected_even_if_its_callers_leave_early(tmp_path: Path) -> None:
    async with FakeEngine() as engine, FaultProxy(engine.port) as hung, FakeEngine() as other:
        async with frequently_probing_gateway(a_config(hung.url, other.url, in_flight_max=4), tmp_path) as gateway:
            hung.fault = Fault(lost="answer")
            served = list[bool]()
            while (await gateway.status())["endpoints"][0]["state"] != "ejected":
                served += await asyncio.gather(*(leaves_early(gateway) for _ in range(2)))
                assert len(served) < 100, "the hung engine must be ejected"
            later = [await streamed(gateway) for _ in range(6)]

    assert not all(served), "requests must have reached the hung engine"
    assert [(attempts, events[-1]) for _, attempts, events in later] == [("1", "[DONE]")] * 6


@pytest.mark.timing
@rerun_if_stalled
async def test_requests_are_rejected_while_the_only_engine_is_unavailable(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with frequently_probing_gateway(a_config(engine.url), tmp_path) as gateway:
            await engine.kill()
            await gateway.wait_for_status(lambda status: status["endpoints"][0]["state"] == "ejected", seconds_max=25)
            async with gateway.post(chat(stream=True)) as answer:
                body = await answer.json()
            await engine.start()
            await gateway.wait_for_status(
                lambda status: status["endpoints"][0]["state"] in ("trial", "ready"), seconds_max=9
            )
            served = await streamed(gateway)

    assert (answer.status, body["error"]["code"]) == (503, "no_endpoints")
    assert answer.headers["x-headgate-attempts"] == "0"
    assert int(answer.headers["retry-after"]) > 0
    assert served[2][-1] == "[DONE]"
