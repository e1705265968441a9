"""A caller that does not read its response uses bounded memory and is disconnected.

The engine sends as fast as it can. The gateway buffers a bounded number of bytes per caller. After `send_timeout`
it disconnects the caller and frees the engine.
"""

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from testing.gateway import RunningGateway, a_config, gateway_process_with_client
from testing.simulated_engines import resident_mib
from testing.stalls import rerun_if_stalled
from tests.security.hostile_engine import HostileEngine
from tests.security.raw import body_of, connected, head_of, request_of

pytestmark = pytest.mark.process

READERS = 50
PER_READER_MIB_MAX = 1.0
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 8192 + b'"}}]}\n\n'


def deaf(url: str) -> socket.socket:
    """Open a connection with the smallest receive buffer that the system allows."""
    host, port = url.removeprefix("http://").split(":")
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect((host, int(port)))
    return made


async def in_flight(gateway: RunningGateway) -> int:
    return sum(each["in_flight"] for each in (await gateway.status())["endpoints"])


async def test_callers_that_never_read_use_bounded_memory_and_are_disconnected(tmp_path: Path) -> None:
    async with HostileEngine() as engine:
        engine.endless = lambda: EVENT
        # All callers must be connected before the first is disconnected, even if the machine stalls for a while.
        config = a_config(engine.url, in_flight_max=READERS, limits={"send_timeout": "15s"})
        async with gateway_process_with_client(config, tmp_path) as (gateway, process):
            with ExitStack() as stack:
                before = resident_mib(process.pid)
                for _ in range(READERS):
                    caller = stack.enter_context(deaf(gateway.url))
                    caller.sendall(request_of(body_of("much", stream=True)))
                await gateway.wait_for_status(
                    lambda status: status["endpoints"][0]["in_flight"] == READERS, seconds_max=60
                )
                grown = 0.0
                async with asyncio.timeout(120):
                    while await in_flight(gateway):
                        grown = max(grown, resident_mib(process.pid) - before)
                        await asyncio.sleep(0.05)
                await gateway.wait_until_idle(seconds_max=60)
                ended = (await gateway.status())["counted"]["classes"]["interactive"]["ended"]

    print(f"{READERS} callers that never read: {grown:+.1f} MiB")
    assert grown < READERS * PER_READER_MIB_MAX
    assert ended == {"cancelled": READERS}
    assert len(engine.prompts) == READERS


@pytest.mark.timing
@rerun_if_stalled
async def test_slow_but_steady_reader_is_not_disconnected(tmp_path: Path) -> None:
    async with HostileEngine() as engine:
        engine.endless = lambda: EVENT
        config = a_config(engine.url, limits={"send_timeout": "6s"})
        async with gateway_process_with_client(config, tmp_path) as (gateway, _):
            with deaf(gateway.url) as caller:
                caller.sendall(request_of(body_of("much", stream=True)))
                await gateway.wait_for_status(lambda status: status["endpoints"][0]["in_flight"] == 1)
                caller.settimeout(60)
                got = 0
                for _ in range(80):
                    got += len(await asyncio.to_thread(caller.recv, 1 << 20))
                    await asyncio.sleep(0.1)
                assert await in_flight(gateway) == 1
            await gateway.wait_until_idle(seconds_max=60)

    assert got > 0


async def test_unread_responses_do_not_accumulate_on_one_connection(tmp_path: Path) -> None:
    """Sends many requests on one connection without reading the responses."""
    async with HostileEngine() as engine:
        config = a_config(engine.url, limits={"send_timeout": "1s"})
        async with gateway_process_with_client(config, tmp_path) as (gateway, process):
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
