"""Converted configurations serve requests from the engines that their sources name."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml

from testing.gateway import CHAT, chat, text_of
from testing.nginx import nginx_command
from testing.ports import free_port
from testing.processes import ChildProcess
from testing.simulated_engines import HEADGATE, simulated_engines

pytestmark = pytest.mark.process


@contextmanager
def converted_gateway(
    source: Path, *arguments: str, environment: dict[str, str] | None = None, **settings: object
) -> Iterator[str]:
    """Converts the source, changes only the ports and `settings`, and runs the gateway. Returns its URL."""
    out = source.parent / "converted.yaml"
    subprocess.run([*HEADGATE, "convert", source, "--out", out, *arguments], check=True, capture_output=True)
    config = yaml.safe_load(out.read_text())
    config |= {"listen": f"127.0.0.1:{free_port()}", "admin_listen": f"127.0.0.1:{free_port()}", **settings}
    file = source.parent / "headgate.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [*HEADGATE, "serve", "--config", str(file)]
    with ChildProcess("headgate", command, environment) as process:
        process.wait_until_ok(f"http://{config['admin_listen']}/ready", seconds_max=120)
        yield f"http://{config['listen']}"


async def response_to(url: str, model: str, key: str | None = None) -> tuple[int, bytes]:
    """Status and body of the response to a streaming request."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    body = chat(model=model, stream=True, max_tokens=8)
    async with asyncio.timeout(120), aiohttp.ClientSession() as http:
        async with http.post(url + CHAT, json=body, headers=headers) as answer:
            return answer.status, await answer.read()


async def streamed(url: str, model: str, key: str | None = None) -> str:
    """Text of a streamed response."""
    status, received = await response_to(url, model, key)
    assert status == 200, received
    assert received.rstrip().endswith(b"data: [DONE]")
    return text_of(received)


async def test_converted_litellm_configuration_serves_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_KEY_SECRET", "a-secret-for-the-keys-of-this-test")
    source = tmp_path / "config.yaml"
    with simulated_engines(2, model="Qwen/Qwen3-8B") as engines:
        deployments = [
            {"model_name": "qwen3", "litellm_params": {"model": "hosted_vllm/Qwen/Qwen3-8B", "api_base": f"{url}/v1"}}
            for url in engines
        ]
        source.write_text(
            yaml.safe_dump(
                {
                    "model_list": deployments,
                    "router_settings": {"routing_strategy": "least-busy", "num_retries": 2, "timeout": 300},
                    "general_settings": {"master_key": "sk-existing-key"},
                }
            )
        )
        with converted_gateway(source) as url:
            assert await streamed(url, "qwen3", key="sk-existing-key")
            assert (await response_to(url, "qwen3"))[0] == 401


NGINX = """\
upstream vllm {{
    least_conn;
    {servers}
    server 127.0.0.1:1 down;
}}
server {{
    listen 127.0.0.1:{port};
    location /v1/ {{
        proxy_pass http://vllm;
        proxy_read_timeout 120s;
        proxy_buffering off;
    }}
}}
"""


async def test_converted_nginx_configuration_serves_a_stream_beside_nginx(tmp_path: Path) -> None:
    port = free_port()
    with simulated_engines(2, model="Qwen/Qwen3-8B") as engines:
        servers = "\n    ".join(f"server {url.removeprefix('http://')} max_conns=8;" for url in engines)
        command = nginx_command(tmp_path, NGINX.format(servers=servers, port=port))
        with ChildProcess("nginx", command) as nginx:
            nginx.wait_until_ok(f"http://127.0.0.1:{port}/v1/models", seconds_max=120)
            source = tmp_path / "nginx.conf"
            with converted_gateway(source, "--engine", "vllm", "--model", "Qwen/Qwen3-8B") as url:
                assert await streamed(url, "Qwen/Qwen3-8B")
                assert await streamed(f"http://127.0.0.1:{port}", "Qwen/Qwen3-8B")
