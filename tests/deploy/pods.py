"""Starts a Deployment's container as a process, and probes it as the kubelet does.

The process gets the manifest's arguments, the Secret's variables, and the mounted ConfigMap and Secrets. Only what
needs a pod's own network or root directory is replaced: the listening addresses, the name server and port of the
engines, and the directories of the mounts.
"""

import asyncio
import contextlib
import itertools
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp

from testing.dns_server import A, DnsServer
from testing.fake_engine import FakeEngine
from testing.ports import free_port
from testing.processes import ChildProcess
from tests.deploy.manifests import Manifest, Tree, the

ENGINES = ("engines.headgate.svc.cluster.local", "engines-starting.headgate.svc.cluster.local")
_LISTENING = re.compile(r"0\.0\.0\.0:(\d+)")


class MountedVolume:
    """Files of a ConfigMap or Secret, replaced as the kubelet replaces them: by swapping a symbolic link."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        self._version = 0

    def write(self, files: Mapping[str, str]) -> None:
        self._version += 1
        version = f"..{self._version}"
        (self.directory / version).mkdir()
        for name, text in files.items():
            (self.directory / version / name).write_text(text)
            if not (link := self.directory / name).is_symlink():
                link.symlink_to(Path("..data") / name)
        (self.directory / "..data_tmp").symlink_to(version)
        (self.directory / "..data_tmp").replace(self.directory / "..data")


@dataclass
class Pod:
    name: str
    deployment: Manifest
    process: ChildProcess
    ports: Mapping[int, int]
    """Port of this machine for each port of the container."""
    mounts: Mapping[str, "MountedVolume"]
    """Mounted volumes by name."""
    http: aiohttp.ClientSession
    on_this_machine: Callable[[str], str]
    """Replaces addresses and mounted directories in a configuration for the pod."""

    def url(self, port: str, scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.ports[self.deployment.port(port)]}"

    async def wait_for_success(self, name: str, *, seconds_max: float = 60.0) -> None:
        """Repeat a probe until it succeeds.

        A startup or liveness probe may fail at most `failureThreshold` times, because the container is then restarted.
        A pod whose readiness probe fails only gets no traffic, for example until the first lookup of its engines.
        """
        probe = self.deployment.container[name]
        deadline = time.monotonic() + seconds_max
        for failures in itertools.count(1):
            if await self._answers(probe):
                return
            is_last = time.monotonic() > deadline if name == "readinessProbe" else failures == probe["failureThreshold"]
            assert not is_last, f"{name} of {self.name} failed {failures} times\n{self.process.log()}"
            await asyncio.sleep(probe["periodSeconds"])

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
    certificate: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[Pod]:
    """Run the Deployment's container with this ConfigMap and these Secrets until the block ends."""
    ports = {int(port): free_port() for port in _LISTENING.findall(config)}
    mounts = {
        each["name"]: (each["mountPath"], MountedVolume(folder / name / each["mountPath"].lstrip("/")))
        for each in deployment.container["volumeMounts"]
        if each["name"] != "tmp"
    }

    def inside(text: str) -> str:
        # The longest path first, because one may be the beginning of another.
        for path, volume in sorted(mounts.values(), key=lambda mount: -len(mount[0])):
            text = text.replace(f"{path}/", f"{volume.directory}/")
        return text

    def on_this_machine(text: str) -> str:
        text = _LISTENING.sub(lambda found: f"127.0.0.1:{ports[int(found[1])]}", text)
        return inside(text.replace("port: 8000", f"port: {engine.port}\n      nameserver: 127.0.0.1:{dns.port}"))

    files_of = {"config": {"headgate.yaml": on_this_machine(config)}, "secrets": secret, "tls": certificate}
    for volume, files in files_of.items():
        if volume in mounts:
            mounts[volume][1].write(files)
    command = [sys.executable, "-m", "headgate.cli.main", *map(inside, deployment.container["args"])]
    async with aiohttp.ClientSession() as http:
        with ChildProcess(name, command, environment_of(name, deployment, secret)) as process:
            volumes = {key: each for key, (_, each) in mounts.items()}
            yield Pod(name, deployment, process, ports, volumes, http, on_this_machine)


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
