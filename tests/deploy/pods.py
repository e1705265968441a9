"""Starts a Deployment's container as a process, and probes it as the kubelet does.

The process gets the manifest's arguments, the Secret's variables and the mounted ConfigMap. Only what needs a pod's own
network is replaced: the listening addresses, and the name server and port of the engines.
"""

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from testing.dns_server import A, DnsServer
from testing.fake_engine import FakeEngine
from testing.ports import free_port
from testing.processes import ChildProcess
from tests.deploy.manifests import Manifest, Tree, the

ENGINES = ("engines.headgate.svc.cluster.local", "engines-starting.headgate.svc.cluster.local")
_LISTENING = re.compile(r"0\.0\.0\.0:(\d+)")


@dataclass
class Pod:
    name: str
    deployment: Manifest
    process: ChildProcess
    ports: Mapping[int, int]
    """Port of this machine for each port of the container."""
    config: Path
    http: aiohttp.ClientSession

    def url(self, port: str) -> str:
        return f"http://127.0.0.1:{self.ports[self.deployment.port(port)]}"

    async def wait_for_success(self, name: str) -> None:
        """Repeat a probe until it succeeds, at most `failureThreshold` times."""
        probe = self.deployment.container[name]
        for _ in range(probe["failureThreshold"]):
            if await self._answers(probe):
                return
            await asyncio.sleep(probe["periodSeconds"])
        raise AssertionError(f"{name} of {self.name} failed {probe['failureThreshold']} times\n{self.process.log()}")

    async def wait_for_failure(self, name: str, *, seconds_max: float = 60.0) -> None:
        """Repeat a probe until it has failed `failureThreshold` times in a row."""
        probe, failures = self.deployment.container[name], 0
        async with asyncio.timeout(seconds_max):
            while failures < probe["failureThreshold"]:
                failures = 0 if await self._answers(probe) else failures + 1
                await asyncio.sleep(probe["periodSeconds"])

    async def _answers(self, probe: Tree) -> bool:
        request = probe["httpGet"]
        timeout = aiohttp.ClientTimeout(total=probe.get("timeoutSeconds", 1))
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with self.http.get(self.url(request["port"]) + request["path"], timeout=timeout) as answer:
                return 200 <= answer.status < 400
        return False

    async def page(self, path: str) -> dict[str, Any]:
        async with self.http.get(self.url("admin") + path) as answer:
            return await answer.json()


@asynccontextmanager
async def running_pod(
    name: str,
    deployment: Manifest,
    config: str,
    folder: Path,
    *,
    engine: FakeEngine,
    dns: DnsServer,
    secret: Mapping[str, str],
) -> AsyncIterator[Pod]:
    """Run the Deployment's container with this ConfigMap and Secret until the block ends."""
    ports = {int(port): free_port() for port in _LISTENING.findall(config)}
    config = _LISTENING.sub(lambda found: f"127.0.0.1:{ports[int(found[1])]}", config)
    config = config.replace("port: 8000", f"port: {engine.port}\n      nameserver: 127.0.0.1:{dns.port}")
    [mount] = [each for each in deployment.container["volumeMounts"] if each["name"] == "config"]
    mounted = folder / name / mount["mountPath"].lstrip("/")
    mounted.mkdir(parents=True)
    (mounted / "headgate.yaml").write_text(config)
    arguments = [each.replace(mount["mountPath"], str(mounted)) for each in deployment.container["args"]]
    command = [sys.executable, "-m", "headgate.cli.main", *arguments]
    async with aiohttp.ClientSession() as http:
        with ChildProcess(name, command, environment_of(name, deployment, secret)) as process:
            yield Pod(name, deployment, process, ports, mounted / "headgate.yaml", http)


def environment_of(name: str, deployment: Manifest, secret: Mapping[str, str]) -> dict[str, str]:
    """The container's environment: all of its Secret, and the fields of the pod that it asks for."""
    environment = {}
    for source in deployment.container.get("envFrom", []):
        assert source["secretRef"]["name"] == the("Secret", "headgate").name
        environment |= secret
    for variable in deployment.container.get("env", []):
        assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
        environment[variable["name"]] = name
    return environment


@asynccontextmanager
async def one_engine() -> AsyncIterator[tuple[FakeEngine, DnsServer]]:
    """An engine, and a name server that lists it under the names in the manifests."""
    dns = DnsServer(records={(name, A): ["127.0.0.1"] for name in ENGINES})
    async with FakeEngine(models=("Qwen/Qwen3-8B",), api_key="engine-key") as engine, dns.serving():
        yield engine, dns
