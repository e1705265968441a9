"""A real Envoy proxy for tests, in front of an engine or the gateway, with faults on demand.

    async with envoy_before(engine.port) as envoy:
        await envoy.inject(abort_status=503)    # fail every POST from now on; probes pass
        ...                                     # reach the engine at envoy.url
        await envoy.inject()                    # stop injecting faults

Envoy is a common proxy in front of a gateway. These tests show how it handles broken connections and how it announces
its timeouts.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from testing.ports import free_ports
from testing.processes import ChildProcess, MissingProgram

START_SECONDS_MAX = 120.0
ENVOY = Path(sys.executable).with_name("envoy")
_TYPES = "type.googleapis.com/envoy.extensions.filters"


@dataclass(frozen=True, slots=True)
class Envoy:
    url: str
    admin_url: str
    process: ChildProcess

    async def inject(
        self, *, abort_status: int | None = None, delay_s: float | None = None, slowly: bool = False
    ) -> None:
        """Set the faults for all later POST requests: an error status, a delay, or a slow response."""
        settings = {
            "fault.http.abort.abort_percent": 0 if abort_status is None else 100,
            "fault.http.abort.http_status": abort_status or 503,
            "fault.http.delay.fixed_delay_percent": 0 if delay_s is None else 100,
            "fault.http.delay.fixed_duration_ms": int((delay_s or 0.001) * 1000),
            "fault.http.rate_limit.response_percent": 100 if slowly else 0,
        }
        async with aiohttp.ClientSession() as http:
            pairs = {name: str(value) for name, value in settings.items()}
            async with http.post(self.admin_url + "/runtime_modify", params=pairs) as answer:
                assert answer.status == 200, await answer.text()


def envoy_command(file: Path, envoy: Path = ENVOY) -> list[str | Path]:
    """Command that runs Envoy with one worker and this bootstrap file."""
    if not envoy.exists():
        raise MissingProgram(f"Envoy is not installed in {envoy.parent}; run scripts/setup")
    # Hot restart needs shared memory with a fixed name, which two Envoys on one machine would share and which outlives
    # them.
    return [envoy, "-c", file, "--concurrency", "1", "--log-level", "warning", "--disable-hot-restart"]


@asynccontextmanager
async def envoy_before(port: int, *, route_s_max: float | None = None, slow_kib_per_s: int = 1) -> AsyncIterator[Envoy]:
    """Run Envoy in front of the server on this loopback port.

    With `route_s_max`, Envoy applies a timeout to responses and sends that timeout to the server.
    """
    listen, admin = free_ports(2)
    bootstrap = _bootstrap(listen, admin, port, route_s_max=route_s_max, slow_kib_per_s=slow_kib_per_s)
    with tempfile.TemporaryDirectory(prefix="headgate-envoy-") as folder:
        file = Path(folder) / "bootstrap.json"
        file.write_text(json.dumps(bootstrap))
        process = await asyncio.to_thread(ChildProcess, "envoy", envoy_command(file))
        try:
            admin_url = f"http://127.0.0.1:{admin}"
            await asyncio.to_thread(process.wait_until_ok, f"{admin_url}/ready", START_SECONDS_MAX)
            yield Envoy(f"http://127.0.0.1:{listen}", admin_url, process)
        finally:
            await asyncio.to_thread(process.stop)


def _bootstrap(listen: int, admin: int, port: int, *, route_s_max: float | None, slow_kib_per_s: int) -> dict[str, Any]:
    route = {"cluster": "behind", "timeout": f"{route_s_max or 0}s"}
    connections = {
        "@type": f"{_TYPES}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        # By default Envoy closes an aborted connection after one second, which would slow down the tests.
        "delayed_close_timeout": "0.05s",
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}]
        },
        "http_filters": [
            {"name": "fault", "typed_config": _fault_filter(slow_kib_per_s)},
            {"name": "router", "typed_config": {"@type": f"{_TYPES}.http.router.v3.Router"}},
        ],
    }
    chain = {"filters": [{"name": "http", "typed_config": connections}]}
    behind = {"lb_endpoints": [{"endpoint": {"address": _address(port)}}]}
    return {
        "admin": {"address": _address(admin)},
        "layered_runtime": {"layers": [{"name": "by admin", "admin_layer": {}}]},
        "static_resources": {
            "listeners": [{"name": "in", "address": _address(listen), "filter_chains": [chain]}],
            "clusters": [
                {
                    "name": "behind",
                    "type": "STATIC",
                    "connect_timeout": "60s",
                    "load_assignment": {"cluster_name": "behind", "endpoints": [behind]},
                }
            ],
        },
    }


def _fault_filter(slow_kib_per_s: int) -> dict[str, Any]:
    """All faults are at zero percent until the admin page changes the percentage."""
    never = {"numerator": 0, "denominator": "HUNDRED"}
    return {
        "@type": f"{_TYPES}.http.fault.v3.HTTPFault",
        "headers": [{"name": ":method", "string_match": {"exact": "POST"}}],
        "abort": {"http_status": 503, "percentage": never},
        "delay": {"fixed_delay": "0.001s", "percentage": never},
        "response_rate_limit": {"fixed_limit": {"limit_kbps": slow_kib_per_s}, "percentage": never},
    }


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
