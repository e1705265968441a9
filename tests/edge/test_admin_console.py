"""Is the console's page served as it should be, and is nobody held up by whoever watches it?"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from headgate.console.assets import load_assets
from headgate.edge.admin.console import BEHIND_MAX, AdminConsole
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
            assert line, "the stream has ended"
        data = await answer.content.readline()
    told: dict[str, object] = json.loads(data.removeprefix(b"data: "))
    return line.decode().removeprefix("event: ").strip(), told


async def test_the_page_and_all_that_it_names_are_served(tmp_path: Path) -> None:
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


async def test_a_file_that_has_not_changed_is_not_sent_again(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        url = f"{gateway.admin_url}/console/console.js"
        async with gateway.http.get(url) as answer:
            etag = answer.headers["etag"]
        async with gateway.http.get(url, headers={"if-none-match": etag}) as answer:
            assert (answer.status, await answer.read()) == (304, b"")
        async with gateway.http.get(url, headers={"if-none-match": '"other"'}) as answer:
            assert answer.status == 200


async def test_who_knows_only_the_address_finds_the_page(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        for path in ("/", "/console"):
            async with gateway.http.get(gateway.admin_url + path, allow_redirects=False) as answer:
                assert (answer.status, answer.headers["location"]) == (307, "/console/")


async def test_what_is_not_on_the_list_is_not_there(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        port = int(gateway.admin_url.rpartition(":")[2])
        for name in ("x", "../admin.py", "..%2fassets.py", "console.js/", "assets/console.js", "runbooks/"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET /console/{name} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 404 "), name
            writer.close()


def test_every_runbook_is_brought_along() -> None:
    written = {path.stem for path in (Path(__file__).parents[2] / "docs" / "operations" / "runbooks").glob("*.md")}

    above, brought = b"runbooks/", load_assets()
    assert {name.removeprefix(above).decode() for name in brought if name.startswith(above)} == written
    assert "engine_hang" in written


async def test_events_begin_with_the_past_and_go_on_each_second(tmp_path: Path) -> None:
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


async def test_so_many_may_watch_and_no_more(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        console = gateway.gateway._admin.console
        assert console is not None
        console.listeners_max = 1
        url = f"{gateway.admin_url}/console/events"
        async with gateway.http.get(url) as answer:
            await next_event(answer)
            async with gateway.http.get(url) as second:
                assert second.status == 503
                assert "1 watch already" in await second.text()
        async with asyncio.timeout(30):
            while True:
                async with gateway.http.get(url) as third:
                    if third.status == 200:
                        break
                await asyncio.sleep(0.01)


async def test_a_gateway_that_leaves_ends_the_stream_and_does_not_wait_for_it(tmp_path: Path) -> None:
    async with FakeEngine() as engine, aiohttp.ClientSession() as http:
        async with gateway_in_loop(a_config(engine.url, drain_grace="60s"), tmp_path) as gateway:
            answer = await http.get(f"{gateway.admin_url}/console/events")
            await next_event(answer)
            gateway.gateway.leave()
            async with asyncio.timeout(30):
                await answer.content.read()
                assert await gateway.running == 0


class SlowWire:
    """A caller that reads when a test says so."""

    peer = "127.0.0.1"

    def __init__(self) -> None:
        self.blocked = False
        self.sent: list[bytes] = []

    def identified(self, _tenant: TenantId | None = None) -> bool:
        return True

    def ask_for_body(self) -> None: ...

    def send_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None: ...

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def send_end(self, data: bytes) -> None:
        self.sent.append(b"end")


async def a_listener(console: AdminConsole) -> tuple[SlowWire, Client, asyncio.Task[bool]]:
    wire = SlowWire()
    client = Client(wire, method="GET", path=b"/console/events", headers={}, body_bytes_max=0)  # type: ignore[arg-type]
    task = asyncio.create_task(console(client))
    await asyncio.sleep(0)
    return wire, client, task


async def test_who_is_behind_misses_events_and_who_stays_behind_is_cut_off() -> None:
    console = AdminConsole({}, lambda: b"first")
    slow, client, slow_task = await a_listener(console)
    quick, _, quick_task = await a_listener(console)
    assert console.listeners == 2

    slow.blocked = True
    for _ in range(BEHIND_MAX):
        console.tell(b"missed")
    slow.blocked = False
    console.tell(b"heard")
    assert slow.sent == [b"retry: 1000\n\nfirst", b"heard"]

    slow.blocked = True
    for _ in range(BEHIND_MAX + 1):
        console.tell(b"missed")
    await slow_task
    assert not client.finished, "an end would say that all was sent"
    assert console.listeners == 1
    assert quick.sent.count(b"missed") == 2 * BEHIND_MAX + 1
    quick_task.cancel()


async def test_who_comes_while_the_gateway_leaves_is_told_so() -> None:
    console = AdminConsole({}, lambda: b"first")
    _, client, task = await a_listener(console)
    console.close()
    assert await task
    assert client.finished

    _, late, late_task = await a_listener(console)
    assert await late_task
    assert late.finished
    assert console.listeners == 0
