"""The map of `headgate cells map` in real proxies: a tenant's requests go to its cells in order."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from shutil import which
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from headgate.cli.output.cell_map import TENANT_HEADER, envoy_data, nginx_lines
from headgate.control.cells.options import CellFleet, FleetCell
from testing.envoy import envoy_command
from testing.ports import free_port, free_ports
from testing.processes import ChildProcess, MissingProgram

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

_TYPES = "type.googleapis.com/envoy.extensions.filters"


class FakeCells:
    """Two cells that respond with their names, or with a status."""

    def __init__(self) -> None:
        self.status = {"a": 200, "b": 200}
        self.ports: dict[str, int] = {}
        self._runners: dict[str, web.AppRunner] = {}

    async def start(self) -> None:
        for name in self.status:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", partial(self._answer, name))
            runner = self._runners[name] = web.AppRunner(app)
            await runner.setup()
            self.ports[name] = free_port()
            await web.TCPSite(runner, "127.0.0.1", self.ports[name]).start()

    async def stop(self, name: str) -> None:
        if (runner := self._runners.pop(name, None)) is not None:
            await runner.cleanup()

    async def _answer(self, name: str, request: web.Request) -> web.Response:
        await request.read()
        status = 200 if request.path.startswith("/v2/health") else self.status[name]
        return web.Response(text=name, status=status)

    def fleet(self) -> CellFleet:
        cells = tuple(FleetCell(name, f"http://127.0.0.1:{port}") for name, port in self.ports.items())
        return CellFleet(cells, pins={"acme": ("a", "b"), "bolt": ("b", "a")})


@asynccontextmanager
async def cells() -> AsyncIterator[FakeCells]:
    found = FakeCells()
    await found.start()
    try:
        yield found
    finally:
        for name in ("a", "b"):
            await found.stop(name)


async def ask(url: str, tenant: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession(headers={TENANT_HEADER: tenant}) as http,
        http.post(f"{url}/v1/chat/completions", json={}) as answer,
    ):
        return answer.status, await answer.text()


async def check(found: FakeCells, url: str) -> None:
    async with asyncio.timeout(60):
        # A proxy may first check the health of its servers.
        while await ask(url, "acme") != (200, "a") or await ask(url, "bolt") != (200, "b"):
            await asyncio.sleep(0.05)
    found.status["a"] = 503
    assert await ask(url, "acme") == (200, "b")
    found.status["a"] = 200
    await found.stop("b")
    assert await ask(url, "bolt") == (200, "a")


async def test_nginx_sends_a_tenant_to_its_cells_in_order(tmp_path: Path) -> None:
    nginx = which("nginx") or which("nginx", path="/usr/sbin:/usr/local/sbin")
    if nginx is None:
        raise MissingProgram("nginx is not installed; run apt-get install nginx-light")
    async with cells() as found:
        port = free_port()
        header = f"$http_{TENANT_HEADER.replace('-', '_')}"
        names = "\n".join(nginx_lines(found.fleet(), ["acme", "bolt"]))
        file = tmp_path / "nginx.conf"
        file.write_text(f"""
            daemon off; master_process off; pid {tmp_path}/pid; error_log stderr;
            events {{}}
            http {{
                access_log off; client_body_temp_path {tmp_path}; proxy_temp_path {tmp_path};
                fastcgi_temp_path {tmp_path}; uwsgi_temp_path {tmp_path}; scgi_temp_path {tmp_path};
                map {header} $headgate_tenant {{ default {header}; }}
                {names}
                server {{
                    listen 127.0.0.1:{port};
                    location = /up {{ return 200; }}
                    location / {{
                        proxy_pass http://$headgate_upstream;
                        proxy_buffering off;
                        proxy_next_upstream error http_503 non_idempotent;
                        proxy_connect_timeout 1s;
                    }}
                }}
            }}
        """)
        command = [nginx, "-p", str(tmp_path), "-c", str(file), "-e", "stderr"]
        with ChildProcess("nginx", command) as process:
            url = f"http://127.0.0.1:{port}"
            await asyncio.to_thread(process.wait_until_ok, f"{url}/up", 60)
            await check(found, url)


async def test_envoy_sends_a_tenant_to_its_cells_in_order(tmp_path: Path) -> None:
    async with cells() as found:
        listen, admin = free_ports(2)
        file = tmp_path / "envoy.json"
        file.write_text(json.dumps(envoy_bootstrap(envoy_data(found.fleet(), ["acme", "bolt"]), listen, admin)))
        with ChildProcess("envoy", envoy_command(file)) as process:
            await asyncio.to_thread(process.wait_until_ok, f"http://127.0.0.1:{admin}/ready", 120)
            await check(found, f"http://127.0.0.1:{listen}")


def envoy_bootstrap(data: dict[str, Any], listen: int, admin: int) -> dict[str, Any]:
    connections = {
        "@type": f"{_TYPES}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": data["routes"]}]},
        "http_filters": [{"name": "router", "typed_config": {"@type": f"{_TYPES}.http.router.v3.Router"}}],
    }
    return {
        "admin": {"address": address(admin)},
        "static_resources": {
            "listeners": [
                {
                    "name": "in",
                    "address": address(listen),
                    "filter_chains": [{"filters": [{"name": "http", "typed_config": connections}]}],
                }
            ],
            "clusters": data["clusters"],
        },
    }


def address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
