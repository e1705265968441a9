"""HTTP/2 clients through the nginx and Envoy configurations in the TLS guide."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from testing.certificates import Authority, CertificateFiles
from testing.envoy import envoy_command
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import CHAT, GatewayInLoop, a_config, chat, gateway_in_loop
from testing.nginx import nginx_command
from testing.ports import free_port
from testing.processes import ChildProcess
from tests.house.small_tree import PROJECT

pytestmark = pytest.mark.process

HOST = "llm.example.com"
GUIDE = (PROJECT / "docs/guides/tls.md").read_text()
START_S_MAX = 60.0


def block_of(language: str, *, starting_with: str) -> str:
    [found] = [
        block
        for block in re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
        if block.startswith(starting_with)
    ]
    return found


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for before, after in pairs:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


def nginx(folder: Path, port: int, gateway_port: str, files: CertificateFiles) -> Sequence[str | Path]:
    block = replaced(
        block_of("nginx", starting_with="upstream"),
        ("listen 443 ", f"listen 127.0.0.1:{port} "),
        ("127.0.0.1:8080", f"127.0.0.1:{gateway_port}"),
        (f"/etc/ssl/{HOST}.pem", files.certificate),
        (f"/etc/ssl/private/{HOST}.key", files.key),
    )
    return nginx_command(folder, block)


def envoy(folder: Path, port: int, gateway_port: str, files: CertificateFiles) -> Sequence[str | Path]:
    block = replaced(
        block_of("yaml", starting_with="static_resources:"),
        ("address: 0.0.0.0, port_value: 443", f"address: 127.0.0.1, port_value: {port}"),
        ("port_value: 8080", f"port_value: {gateway_port}"),
        (f"/etc/ssl/{HOST}.pem", files.certificate),
        (f"/etc/ssl/private/{HOST}.key", files.key),
    )
    file = folder / "envoy.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(block)))
    return envoy_command(file)


Proxy = Callable[[Path, int, str, CertificateFiles], Sequence[str | Path]]
PROXIES = pytest.mark.parametrize("proxy", [nginx, envoy])


@dataclass(frozen=True, slots=True)
class Front:
    gateway: GatewayInLoop
    engine: FakeEngine
    port: int
    authority: Authority

    async def curl(self, body: dict[str, object]) -> asyncio.subprocess.Process:
        """Start a request with HTTP/2. The last line of the output is the HTTP version and the status."""
        return await asyncio.create_subprocess_exec(
            *("curl", "--http2", "--no-buffer", "--silent", "--show-error", "--cacert", self.authority.file),
            *("--resolve", f"{HOST}:{self.port}:127.0.0.1", f"https://{HOST}:{self.port}{CHAT}"),
            *("--header", "content-type: application/json", "--data", json.dumps(body)),
            *("--write-out", "\n%{http_version} %{http_code}"),
            stdout=asyncio.subprocess.PIPE,
        )


@asynccontextmanager
async def in_front(proxy: Proxy, folder: Path) -> AsyncIterator[Front]:
    authority, port = Authority(folder / "pki"), free_port()
    files = authority.issue("tls", HOST)
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), folder) as gateway:
        command = proxy(folder, port, gateway.url.rpartition(":")[2], files)
        process = await asyncio.to_thread(ChildProcess, proxy.__name__, command)
        try:
            await accepts(port, process)
            yield Front(gateway, engine, port, authority)
        finally:
            await asyncio.to_thread(process.stop)


async def accepts(port: int, process: ChildProcess) -> None:
    async with asyncio.timeout(START_S_MAX):
        while True:
            assert process.exit_status is None, process.log()
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return


@PROXIES
async def test_http2_client_gets_a_complete_response(proxy: Proxy, tmp_path: Path) -> None:
    async with in_front(proxy, tmp_path) as front:
        client = await front.curl(chat())
        said, _ = await client.communicate()
        body, _, ended = said.decode().rpartition("\n")

    assert ended == "2 200"
    assert json.loads(body)["choices"][0]["message"]["content"]


@PROXIES
async def test_http2_client_gets_each_token_immediately(proxy: Proxy, tmp_path: Path) -> None:
    async with in_front(proxy, tmp_path) as front:
        front.engine.behaviour = Behaviour(tokens=8, hang_after=3)
        client = await front.curl(chat(stream=True))
        request = await front.engine.next_request()
        assert client.stdout is not None
        begun = b""
        async with asyncio.timeout(60):
            while begun.count(b'"content":') < 3:
                begun += await client.stdout.read(65_536)
        assert b"[DONE]" not in begun
        request.resume.set()
        said = (begun + await client.stdout.read()).decode()
        await client.wait()

    assert "data: [DONE]" in said
    assert said.endswith("\n2 200")


@PROXIES
async def test_disconnected_http2_client_frees_the_engine(proxy: Proxy, tmp_path: Path) -> None:
    async with in_front(proxy, tmp_path) as front:
        front.engine.behaviour = Behaviour(tokens=8, hang_after=3)
        client = await front.curl(chat(stream=True))
        request = await front.engine.next_request()
        client.terminate()
        await client.communicate()
        async with asyncio.timeout(60):
            await request.client_left.wait()
        await front.gateway.wait_until_idle()
