"""What does a caller cost that asks for much and reads none of it?

Its engine sends as fast as it can. What the gateway holds for such a caller is bounded; after `client_stall_max` the
caller is cut off and the engine freed.
"""

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from testing.gateway import RunningGateway, a_config, gateway_beside
from testing.simulated import resident_mib
from testing.stalls import again_if_stalled
from tests.security.hostile_engine import HostileEngine
from tests.security.raw import body_of, connected, head_of, request_of

pytestmark = pytest.mark.process

READERS = 50
PER_READER_MIB_MAX = 1.0
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 8192 + b'"}}]}\n\n'


def deaf(url: str) -> socket.socket:
    """A connection whose own side holds as little as the system allows."""
    host, port = url.removeprefix("http://").split(":")
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect((host, int(port)))
    return made


async def in_flight(gateway: RunningGateway) -> int:
    return sum(each["in_flight"] for each in (await gateway.status())["endpoints"])


async def test_callers_that_never_read_are_held_in_bounded_memory_and_then_cut_off(tmp_path: Path) -> None:
    async with HostileEngine() as engine:
        engine.endless = lambda: EVENT
        # All readers must be connected before the first is cut off, even if the machine pauses for a while.
        config = a_config(engine.url, in_flight_max=READERS, limits={"client_stall_max": "15s"})
        async with gateway_beside(config, tmp_path) as (gateway, process):
            with ExitStack() as stack:
                before = resident_mib(process.pid)
                for _ in range(READERS):
                    caller = stack.enter_context(deaf(gateway.url))
                    caller.sendall(request_of(body_of("much", stream=True)))
                await gateway.until(lambda status: status["endpoints"][0]["in_flight"] == READERS, seconds_max=60)
                grown = 0.0
                async with asyncio.timeout(120):
                    while await in_flight(gateway):
                        grown = max(grown, resident_mib(process.pid) - before)
                        await asyncio.sleep(0.05)
                await gateway.until_idle(seconds_max=60)
                ended = (await gateway.status())["counted"]["classes"]["interactive"]["ended"]

    print(f"{READERS} callers that read nothing: {grown:+.1f} MiB")
    assert grown < READERS * PER_READER_MIB_MAX
    assert ended == {"cancelled": READERS}
    assert len(engine.prompts) == READERS


@pytest.mark.timing
@again_if_stalled
async def test_a_caller_that_reads_slowly_but_steadily_is_not_cut_off(tmp_path: Path) -> None:
    async with HostileEngine() as engine:
        engine.endless = lambda: EVENT
        config = a_config(engine.url, limits={"client_stall_max": "6s"})
        async with gateway_beside(config, tmp_path) as (gateway, _):
            with deaf(gateway.url) as caller:
                caller.sendall(request_of(body_of("much", stream=True)))
                await gateway.until(lambda status: status["endpoints"][0]["in_flight"] == 1)
                caller.settimeout(60)
                got = 0
                for _ in range(80):
                    got += len(await asyncio.to_thread(caller.recv, 1 << 20))
                    await asyncio.sleep(0.1)
                assert await in_flight(gateway) == 1
            await gateway.until_idle(seconds_max=60)

    assert got > 0


async def test_answers_that_nobody_reads_do_not_pile_up_on_one_connection(tmp_path: Path) -> None:
    """Requests one after the other on a connection whose answers are left lying."""
    async with HostileEngine() as engine:
        config = a_config(engine.url, limits={"client_stall_max": "1s"})
        async with gateway_beside(config, tmp_path) as (gateway, process):
            async with connected(gateway.url) as warm:
                await warm.send(request_of(body_of("warm")))
                assert (await warm.answer()).status == 200
            before = resident_mib(process.pid)
            grown = await asyncio.to_thread(ask_and_never_read, gateway.url, process.pid, before)

    assert grown < 16


def ask_and_never_read(url: str, pid: int, before: float) -> float:
    question = head_of(first=b"GET /v1/models HTTP/1.1") * 1000
    with deaf(url) as caller:
        caller.settimeout(2)
        try:
            for _ in range(2000):
                caller.sendall(question)
        except OSError:
            pass
        return resident_mib(pid) - before
