"""Tests for liveness probes, which the admin listener answers even while the event loop is blocked."""

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headgate.edge.admin.health import HANDED_OVER_MAX, HealthThread
from headgate.edge.listener import bind
from headgate.model.units import SECOND
from headgate.telemetry.loop_watchdog import STALLED_NS_MAX
from testing.fake_engine import FakeEngine
from testing.gateway import GatewayInLoop, a_config, gateway_in_loop
from testing.stalls import rerun_if_stalled
from tests.security.raw import connected, head_of

PROBES_MAX = 300
BLOCKED_S_MAX = 30.0
PROBE = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@asynccontextmanager
async def a_gateway(folder: Path) -> AsyncIterator[GatewayInLoop]:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), folder) as gateway:
        yield gateway


async def test_probe_is_answered_while_the_event_loop_is_blocked(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        # This call does not await, so it blocks the loop until it returns.
        connection = http.client.HTTPConnection(gateway.admin_url.removeprefix("http://"), timeout=30)
        connection.request("GET", "/health")
        answer = connection.getresponse()
        body = answer.read()
        connection.close()

    assert (answer.status, body) == (200, b"alive\n")


async def test_probe_reports_a_blocked_event_loop(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        turns = gateway.gateway._observability.turns
        turns._stalled_ns_max = 0
        while turns._probe is None:
            pass
        with socket.create_connection(gateway.gateway._parts.listeners[-1].address, timeout=30) as caller:
            caller.sendall(PROBE)
            answer = b""
            while data := caller.recv(4096):
                answer += data

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"the event loop has been blocked for" in answer


async def test_head_probe_has_no_response_body(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway, connected(gateway.admin_url) as caller:
        await caller.send(PROBE.replace(b"GET", b"HEAD"))
        answer = await caller.rest()

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (head_of(first=b"GET /ready HTTP/1.1"), 200),
        (head_of(first=b"GET /health?x=1 HTTP/1.1"), 200),
        (head_of(first=b"GET /healthz HTTP/1.1"), 404),
        (head_of(b"content-length: 0", first=b"GET /health HTTP/1.1"), 200),
        (head_of(first=b"GET /health HTTP/1.1", host=None), 400),
        (head_of(b"x\x00y: z", first=b"GET /health HTTP/1.1"), 400),
        (head_of(b"transfer-encoding: gzip", first=b"GET /health HTTP/1.1"), 501),
        (head_of(first=b"POST /health HTTP/1.1"), 404),
    ],
)
async def test_listener_answers_all_other_requests(tmp_path: Path, request_bytes: bytes, status: int) -> None:
    async with a_gateway(tmp_path) as gateway, connected(gateway.admin_url) as caller:
        await caller.send(request_bytes)
        assert (await caller.answer()).status == status


async def test_probe_received_byte_by_byte_is_answered(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway, connected(gateway.admin_url) as caller:
        await caller.drip(PROBE)
        assert (await caller.answer()).status == 200


async def test_connection_serves_several_requests(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway, connected(gateway.admin_url) as caller:
        for _ in range(3):
            await caller.send(head_of(first=b"GET /ready HTTP/1.1"))
            assert (await caller.answer()).status == 200
            await caller.send(PROBE)
            assert (await caller.answer()).status == 200


def test_number_of_connections_waiting_for_the_loop_is_bounded() -> None:
    # On a slow machine, the probe's bytes can arrive long after its connection.
    thread = HealthThread(bind("127.0.0.1", 0), lambda: (200, "alive"), lambda: None, first_bytes_s_max=60)
    address = thread._listening.getsockname()
    thread.start()
    callers = [socket.create_connection(address, timeout=30) for _ in range(HANDED_OVER_MAX + 1)]
    try:
        for caller in callers:
            caller.sendall(b"GET / HTTP/1.1\r\n")
        # The one connection beyond the limit is closed; all others wait.
        with socket.create_connection(address, timeout=30) as probe:
            probe.sendall(PROBE)
            assert probe.recv(100).startswith(b"HTTP/1.1 200 ")
        closed = 0
        for caller in callers:
            caller.setblocking(False)
            try:
                closed += caller.recv(1) == b""
            except ConnectionResetError:
                closed += 1
            except BlockingIOError:
                pass
        assert (closed, len(thread.accepted)) == (1, HANDED_OVER_MAX)
    finally:
        thread.stop()
        for caller in callers:
            caller.close()


async def test_stopping_the_gateway_stops_the_health_thread(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        address = gateway.gateway._parts.listeners[-1].address
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)


@pytest.mark.timing
@rerun_if_stalled
async def test_probe_returns_503_while_the_loop_is_blocked_and_200_before_and_after(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        address = gateway.gateway._parts.listeners[-1].address
        stalled, blocked_s = threading.Event(), 0.0

        def probe_until(status: int) -> list[int]:
            """Probes until this status is received and returns all statuses."""
            statuses: list[int] = []
            while not statuses or (statuses[-1] != status and len(statuses) < PROBES_MAX):
                statuses.append(probed(address))
            return statuses

        def block() -> None:
            nonlocal blocked_s
            began = time.monotonic()
            stalled.wait(BLOCKED_S_MAX)
            blocked_s = time.monotonic() - began

        with ThreadPoolExecutor(1) as prober:
            assert await asyncio.wrap_future(prober.submit(probe_until, 200)) == [200]
            probing = prober.submit(probe_until, 503)
            probing.add_done_callback(lambda _: stalled.set())
            block()  # Not awaited: this blocks the loop until the prober has received 503.
            during = probing.result()
            after = await asyncio.wrap_future(prober.submit(probe_until, 200))

    assert set(during[:-1]) == {200}, "200 until the loop has been blocked for 5 s"
    assert during[-1] == 503
    assert STALLED_NS_MAX / SECOND - 0.1 <= blocked_s < BLOCKED_S_MAX
    assert after[-1] == 200


def probed(address: tuple[str, int]) -> int:
    """Sends one probe, waits 0.1 s and returns the status."""
    connection = http.client.HTTPConnection(*address, timeout=30)
    connection.request("GET", "/health")
    status = connection.getresponse().status
    connection.close()
    time.sleep(0.1)
    return status
