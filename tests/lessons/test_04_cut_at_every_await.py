"""A request cancelled at any await releases its connections, tasks and slots.

Gateway, engine and caller share one event loop. A caller that disconnects after 0, 1, 2, … iterations of the loop
therefore cancels the gateway in each of its awaits: reading, queueing, connecting, sending, relaying and finishing.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from testing.fake_engine import Behaviour, FakeEngine
from testing.fault_proxy import Fault, FaultProxy
from testing.gateway import GatewayInLoop, a_config, chat, events_of, gateway_in_loop
from tests.lessons.callers import RawCaller

PLACES = 4
TURNS_MAX = 400
REST_S_MAX = 60.0
PROBES = 1
"""Number of additional connections that the gateway's probes can have open."""


@dataclass
class Bench:
    """Gateway in front of one engine, with a proxy between them that counts connections."""

    engine: FakeEngine
    proxy: FaultProxy
    gateway: GatewayInLoop
    held_at_start: dict[str, int]

    async def cut(self, body: dict[str, object], *, turns: int, by_reset: bool) -> bytes:
        """Send a request, disconnect after `turns` loop iterations and return the bytes received so far."""
        caller = await RawCaller.to(self.gateway.url)
        caller.ask(body)
        for _ in range(turns):
            await asyncio.sleep(0)
        got = caller.got
        caller.leave(by_reset=by_reset)
        return got

    async def all_given_back(self) -> None:
        await self.gateway.wait_until_idle()
        await self.gateway.wait_for_status(lambda _: self.engine.connections_open <= PLACES + PROBES)
        held, at_start = await at_rest(self.gateway, self.engine, self.proxy, self.held_at_start), self.held_at_start
        assert {name: held[name] for name in held if held[name] > at_start[name]} == {}, (held, at_start)
        assert (held["requests"], held["attempts"], held["command_channels"]) == (0, 0, 0)
        assert self.engine.running == 0
        async with self.gateway.post(chat(stream=True)) as answer:
            assert events_of(await answer.read())[-1] == "[DONE]", "the gateway must still serve requests"


@asynccontextmanager
async def a_bench(folder: Path, **settings: object) -> AsyncIterator[Bench]:
    async with FakeEngine() as engine, FaultProxy(engine.port) as proxy:
        config = a_config(proxy.url, in_flight_max=PLACES, health={"consecutive_failures_max": 1_000_000}, **settings)
        async with gateway_in_loop(config, folder) as gateway:
            async with gateway.post(chat(stream=True)) as answer:
                await answer.read()
            yield Bench(engine, proxy, gateway, await at_rest(gateway, engine, proxy))


async def at_rest(
    gateway: GatewayInLoop, engine: FakeEngine, proxy: FaultProxy, at_most: dict[str, int] | None = None
) -> dict[str, int]:
    """Return the held resources once no engine connections are open, or the last values after REST_S_MAX."""
    held: dict[str, int] = {}
    give_up_at = time.monotonic() + REST_S_MAX
    while time.monotonic() < give_up_at:
        engine.close_idle_connections()
        await asyncio.sleep(0.01)
        held = (await gateway.status())["held"]
        quiet = proxy.connections_open == engine.connections_open == 0
        if quiet and (at_most is None or all(held[name] <= at_most[name] for name in held)):
            break
    return held


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "non-streaming"])
@pytest.mark.parametrize("connected", [True, False], ids=["on a reused connection", "on a new connection"])
async def test_disconnect_after_any_number_of_loop_iterations_releases_everything(
    tmp_path: Path, stream: bool, connected: bool
) -> None:
    async with a_bench(tmp_path) as bench:
        turns, complete = 0, 0
        while complete < 5 and turns < TURNS_MAX:
            while not connected and bench.proxy.connections_open:
                # A connection becomes idle shortly after its response has ended.
                bench.engine.close_idle_connections()
                await asyncio.sleep(0.005)
            got = await bench.cut(chat(stream=stream), turns=turns, by_reset=turns % 2 == 0)
            complete += b"[DONE]" in got if stream else got.endswith(b"}")
            turns += 1
        print(f"a request takes {turns} loop iterations; the engine received {len(bench.engine.requests)} requests")

        assert complete == 5, (
            "the last disconnects must come after the end of the response, so that all iterations are covered"
        )
        assert turns > 10
        await bench.all_given_back()


async def test_simultaneous_disconnects_from_running_and_queued_requests_release_everything(tmp_path: Path) -> None:
    async with a_bench(tmp_path) as bench:
        bench.engine.behaviour = Behaviour(tokens=4, pace_s=0.002)
        cuts = [bench.cut(chat(stream=turns % 3 > 0), turns=4 * turns, by_reset=turns % 2 == 0) for turns in range(120)]
        await asyncio.gather(*cuts)
        bench.engine.behaviour = Behaviour()

        assert bench.engine.running_max <= PLACES
        await bench.all_given_back()


async def test_request_truncated_at_any_byte_releases_everything(tmp_path: Path) -> None:
    async with a_bench(tmp_path) as bench:
        asked_before = len(bench.engine.requests)
        length, count = 1, 0
        while count < length:
            caller = await RawCaller.to(bench.gateway.url)
            length = caller.ask(chat(stream=True), bytes_max=count)
            for _ in range(3):
                await asyncio.sleep(0)
            caller.leave(by_reset=count % 2 == 0)
            count += 1

        await bench.all_given_back()
        assert len(bench.engine.requests) == asked_before + 1, "an incomplete request must not reach the engine"


async def test_disconnect_at_any_byte_in_the_response_releases_everything(tmp_path: Path) -> None:
    async with a_bench(tmp_path) as bench:
        bench.engine.behaviour = Behaviour(tokens=2)
        whole = await RawCaller.to(bench.gateway.url)
        whole.ask(chat(stream=True))
        length = len(await whole.read_until(b"[DONE]"))
        whole.leave()
        for count in range(0, length, 3):
            caller = await RawCaller.to(bench.gateway.url)
            caller.ask(chat(stream=True))
            assert len(await caller.read(count)) == count
            caller.leave(by_reset=count % 2 == 0)

        await bench.all_given_back()


@pytest.mark.parametrize(
    "fault",
    [
        Fault(only=b"POST", lost="question"),
        Fault(only=b"POST", lost="answer"),
        Fault(only=b"POST", silent_after=300),
        Fault(only=b"POST", half_close_after=300),
        Fault(only=b"POST", bytes_per_s=2_000),
        Fault(only=b"POST", cut_after=300),
        Fault(only=b"POST", reset_after=300),
    ],
    ids=["request lost", "response lost", "silent midway", "half closed", "slow", "closed", "reset"],
)
async def test_disconnect_from_a_faulty_connection_releases_everything(tmp_path: Path, fault: Fault) -> None:
    async with a_bench(tmp_path, retry={"attempts_max": 1}) as bench:
        bench.proxy.fault = fault
        cuts = [bench.cut(chat(stream=turns % 2 > 0), turns=6 * turns, by_reset=turns % 3 == 0) for turns in range(40)]
        await asyncio.gather(*cuts)
        bench.proxy.fault = Fault()

        await bench.all_given_back()
