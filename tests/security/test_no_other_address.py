"""Only the operator decides where the gateway connects.

A trap listens at the address that callers and engines specify. It must never receive a connection.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from testing.fake_engine import FakeEngine
from testing.gateway import CHAT, a_config, gateway_in_loop
from tests.security.hostile_engine import HostileEngine, Script, framed
from tests.security.raw import body_of, connected, request_of


@dataclass
class Trap:
    port: int = 0
    connections: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"


@asynccontextmanager
async def a_trap() -> AsyncIterator[Trap]:
    trap = Trap()

    def caught(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        trap.connections += 1
        writer.close()

    server = await asyncio.start_server(caught, "127.0.0.1", 0)
    trap.port = server.sockets[0].getsockname()[1]
    try:
        yield trap
        # Connections are accepted in order, so by the time this one is counted, all earlier ones have been.
        reader, writer = await asyncio.open_connection("127.0.0.1", trap.port)
        await reader.read()
        writer.close()
        trap.connections -= 1
    finally:
        server.close()


HEADERS = (
    "x-headgate-endpoint",
    "x-headgate-url",
    "x-headgate-base-url",
    "x-headgate-model",
    "x-headgate-pool",
    "x-base-url",
    "x-api-base",
    "x-litellm-api-base",
    "x-portkey-custom-host",
    "helicone-target-url",
    "openai-base-url",
    "x-gateway-destination-endpoint",
    "x-forwarded-host",
    "x-forwarded-server",
    "x-forwarded-for",
    "x-real-ip",
    "forwarded",
    "x-host",
    "x-original-url",
    "x-rewrite-url",
    "x-proxy-url",
    "proxy",
    "via",
    "location",
    "origin",
    "referer",
    "upgrade",
    "traceparent",
    "tracestate",
)
FIELDS = ("base_url", "api_base", "url", "endpoint", "host", "proxy", "webhook", "callback_url", "api_key", "provider")


async def test_request_headers_do_not_control_connections(tmp_path: Path) -> None:
    async with a_trap() as trap, FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url), tmp_path) as gateway, connected(gateway.url) as caller:
            for value in (trap.address, trap.url, f"host={trap.address};proto=http"):
                lines = [f"{name}: {value}".encode() for name in HEADERS]
                await caller.send(request_of(body_of("hi"), *lines, host=trap.address.encode()))
                assert (await caller.answer()).status == 200
        received = engine.requests

    assert trap.connections == 0
    assert len(received) == 3
    for request in received:
        # Only the trace headers are forwarded, and they contain no address to connect to.
        told = {name: value for name, value in request.headers.items() if trap.address in value}
        assert told.keys() <= {"traceparent", "tracestate"}


@pytest.mark.parametrize("target", ["http://{}/v1/chat/completions", "//{}/v1/chat/completions", "{}", "http://{}/"])
async def test_request_target_does_not_control_connections(tmp_path: Path, target: str) -> None:
    async with a_trap() as trap, FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
            for method in (b"POST", b"GET", b"CONNECT"):
                async with connected(gateway.url) as caller:
                    first = b"%b %b HTTP/1.1" % (method, target.format(trap.address).encode())
                    await caller.send(request_of(body_of("hi"), b"connection: close", first=first))
                    await caller.rest()

    assert trap.connections == 0


async def test_body_fields_do_not_control_connections(tmp_path: Path) -> None:
    async with a_trap() as trap, FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url), tmp_path) as gateway, connected(gateway.url) as caller:
            for value in (trap.url, trap.address):
                await caller.send(request_of(body_of("hi", **dict.fromkeys(FIELDS, value), metadata={"url": value})))
                assert (await caller.answer()).status == 200
            await caller.send(request_of(body_of("hi", model=trap.url)))
            assert (await caller.answer()).status == 404

    assert trap.connections == 0
    assert len(engine.requests) == 2


async def test_gateway_does_not_fetch_urls_in_prompts(tmp_path: Path) -> None:
    """URLs of images, files and tools are forwarded unchanged. The engine decides whether to fetch them."""
    async with a_trap() as trap, FakeEngine() as engine:
        content = [
            {"type": "text", "text": "what is this"},
            {"type": "image_url", "image_url": {"url": trap.url + "/a.png"}},
            {"type": "input_image", "image_url": trap.url + "/b.png"},
            {"type": "file", "file": {"file_url": trap.url}},
            {"type": "video_url", "video_url": {"url": "http://169.254.169.254/latest/meta-data"}},
        ]
        tools = [{"type": "mcp", "server_url": trap.url, "server_label": "x"}]
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}], "tools": tools}).encode()
        async with gateway_in_loop(a_config(engine.url), tmp_path) as gateway, connected(gateway.url) as caller:
            await caller.send(request_of(body))
            assert (await caller.answer()).status == 200

    assert trap.connections == 0
    [received] = engine.requests
    assert received.json["messages"] == [{"role": "user", "content": content}]
    assert received.json["tools"] == tools


@pytest.mark.parametrize("status", [b"301 Moved", b"302 Found", b"303 See Other", b"307 Temporary", b"308 Permanent"])
async def test_engine_redirect_is_not_followed(tmp_path: Path, status: bytes) -> None:
    async with a_trap() as trap, HostileEngine() as engine:
        config = a_config(engine.url, retry={"attempts_max": 1}, health={"consecutive_failures_max": 100})
        async with gateway_in_loop(config, tmp_path) as gateway, connected(gateway.url) as caller:
            where = b"location: " + trap.url.encode() + CHAT.encode()
            refresh = b"refresh: 0; url=" + trap.url.encode()
            engine.script.append(Script((framed(b"{}", where, refresh, status=status),), close=False))
            await caller.send(request_of(body_of("hi")))
            answer = await caller.answer()

    assert trap.connections == 0
    assert answer.status == 502
    assert b"location" not in answer.headers
    assert trap.address.encode() not in answer.body


async def test_probe_redirect_is_not_followed(tmp_path: Path) -> None:
    async with a_trap() as trap, HostileEngine() as engine:
        engine.probes_sent_to = trap.url
        async with gateway_in_loop(a_config(engine.url), tmp_path, wait_for=0) as gateway:
            async with asyncio.timeout(30):
                while engine.probes < 2:
                    await asyncio.sleep(0.05)
            states = [each["state"] for each in (await gateway.status())["endpoints"]]

    assert trap.connections == 0
    assert states == ["warming"]


async def test_proxy_environment_variables_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_trap() as trap, FakeEngine() as engine:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, trap.url)
        async with gateway_in_loop(a_config(engine.url), tmp_path) as gateway, connected(gateway.url) as caller:
            await caller.send(request_of(body_of("hi")))
            assert (await caller.answer()).status == 200

    assert trap.connections == 0
