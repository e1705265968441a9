"""Tests for the console page and its event stream."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from headgate.edge.admin.console import MISSED_EVENTS_MAX, AdminConsole
from headgate.edge.client import Client
from headgate.model.units import TenantId
from testing.fake_engine import FakeEngine
from testing.gateway import GatewayInLoop, a_config, chat, gateway_in_loop


@asynccontextmanager
async def a_gateway(folder: Path) -> AsyncIterator[GatewayInLoop]:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), folder) as gateway:
        yield gateway


async def next_event(answer: aiohttp.ClientResponse) -> tuple[str, dict[str, object]]:
    async with asyncio.timeout(30):
        while not (line := await answer.content.readline()).startswith(b"event: "):
            assert line, "the event stream ended"
        data = await answer.content.readline()
    told: dict[str, object] = json.loads(data.removeprefix(b"data: "))
    return line.decode().removeprefix("event: ").strip(), told


async def test_console_page_and_its_assets_are_served(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        for name, kind in (
            ("", "text/html"),
            ("console.js", "text/javascript"),
            ("console.css", "text/css"),
            ("icon.svg", "image/svg+xml"),
            ("uplot-license.txt", "text/plain"),
        ):
            async with gateway.http.get(f"{gateway.admin_url}/console/{name}") as answer:
                assert answer.status == 200
                assert answer.headers["content-type"].startswith(kind)
                assert "default-src 'none'" in answer.headers["content-security-policy"]
                assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert answer.headers["cache-control"] == "no-cache"


async def test_unchanged_asset_is_not_sent_again(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        url = f"{gateway.admin_url}/console/console.js"
        async with gateway.http.get(url) as answer:
            etag = answer.headers["etag"]
        async with gateway.http.get(url, headers={"if-none-match": etag}) as answer:
            assert (answer.status, await answer.read()) == (304, b"")
        async with gateway.http.get(url, headers={"if-none-match": '"other"'}) as answer:
            assert answer.status == 200


async def test_root_path_redirects_to_console(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        for path in ("/", "/console"):
            async with gateway.http.get(gateway.admin_url + path, allow_redirects=False) as answer:
                assert (answer.status, answer.headers["location"]) == (307, "/console/")


async def test_unknown_console_path_returns_404(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        port = int(gateway.admin_url.rpartition(":")[2])
        for name in ("x", "../admin.py", "..%2fassets.py", "console.js/", "assets/console.js", "runbooks/"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET /console/{name} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 404 "), name
            writer.close()


async def test_event_stream_starts_with_history_and_continues_with_state(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        async with gateway.http.get(f"{gateway.admin_url}/console/events") as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            assert (await next_event(answer))[0] == "history"
            name, state = await next_event(answer)
            assert (name, state["version"]) == ("state", 1)

            async with gateway.post(chat()) as served:
                await served.read()
            async with asyncio.timeout(30):
                while True:
                    name, state = await next_event(answer)
                    classes = state["classes"]
                    assert isinstance(classes, list)
                    if any(each["completed_per_s"] for each in classes):
                        break
            assert name == "state"


async def test_number_of_event_streams_is_limited(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        console = gateway.gateway._admin.console
        assert console is not None
        console.subscribers_max = 1
        url = f"{gateway.admin_url}/console/events"
        async with gateway.http.get(url) as answer:
            await next_event(answer)
            async with gateway.http.get(url) as second:
                assert second.status == 503
                assert "console streams are limited to 1" in await second.text()
        async with asyncio.timeout(30):
            while True:
                async with gateway.http.get(url) as third:
                    if third.status == 200:
                        break
                await asyncio.sleep(0.01)


async def test_shutdown_ends_event_streams_without_waiting_for_them(tmp_path: Path) -> None:
    async with FakeEngine() as engine, aiohttp.ClientSession() as http:
        async with gateway_in_loop(a_config(engine.url, drain_grace="60s"), tmp_path) as gateway:
            answer = await http.get(f"{gateway.admin_url}/console/events")
            await next_event(answer)
            gateway.gateway.shut_down()
            async with asyncio.timeout(30):
                await answer.content.read()
                assert await gateway.running == 0


class SlowWire:
    """A client that stops and resumes reading when the test sets `blocked`."""

    peer = "127.0.0.1"

    def __init__(self) -> None:
        self.blocked = False
        self.sent: list[bytes] = []

    def mark_authenticated(self, _tenant: TenantId | None = None) -> bool:
        return True

    def pause_body(self) -> None: ...

    def resume_body(self) -> None: ...

    def send_continue(self) -> None: ...

    def send_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None: ...

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def send_end(self, data: bytes) -> None:
        self.sent.append(b"end")

    def chunk_writer(self) -> None: ...


async def a_listener(console: AdminConsole) -> tuple[SlowWire, Client, asyncio.Task[bool]]:
    wire = SlowWire()
    client = Client(wire, method="GET", path=b"/console/events", headers={}, body_bytes_max=0)  # type: ignore[arg-type]
    task = asyncio.create_task(console(client))
    await asyncio.sleep(0)
    return wire, client, task


async def test_slow_listener_misses_events_and_is_disconnected_after_too_many() -> None:
    console = AdminConsole({}, lambda: b"first")
    slow, client, slow_task = await a_listener(console)
    quick, _, quick_task = await a_listener(console)
    assert console.subscribers == 2

    slow.blocked = True
    for _ in range(MISSED_EVENTS_MAX):
        console.broadcast(b"missed")
    slow.blocked = False
    console.broadcast(b"heard")
    assert slow.sent == [b"retry: 1000\n\nfirst", b"heard"]

    slow.blocked = True
    for _ in range(MISSED_EVENTS_MAX + 1):
        console.broadcast(b"missed")
    await slow_task
    assert not client.finished, "the response must not look complete"
    assert console.subscribers == 1
    assert quick.sent.count(b"missed") == 2 * MISSED_EVENTS_MAX + 1
    quick_task.cancel()


async def test_event_stream_opened_during_shutdown_ends_immediately() -> None:
    console = AdminConsole({}, lambda: b"first")
    _, client, task = await a_listener(console)
    console.close()
    assert await task
    assert client.finished

    _, late, late_task = await a_listener(console)
    assert await late_task
    assert late.finished
    assert console.subscribers == 0
