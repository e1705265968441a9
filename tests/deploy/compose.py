"""Starts the services in deploy/compose/compose.yaml as processes, without containers.

Each service gets its command and environment from the file, its mounted directories and its own ports. Services start
in the order of `depends_on` and are healthy when their health check succeeds. Only what needs a container's own network
or root directory is replaced: addresses, and the directories of the mounts.
"""

import asyncio
import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from graphlib import TopologicalSorter
from pathlib import Path
from types import MappingProxyType

import asyncpg
import yaml

from testing import stores
from testing.ports import free_port
from testing.postgres import Postgres, postgres
from testing.processes import ChildProcess
from testing.prometheus import find_program
from tests.deploy.manifests import DEPLOY, Tree

COMPOSE = DEPLOY / "compose"
SECRETS = MappingProxyType({"HEADGATE_KEY_SECRET": "x" * 43, "POSTGRES_PASSWORD": "postgres-password"})
"""Content of the file .env."""

_HEADGATE = (sys.executable, "-m", "headgate.cli.main")
_VARIABLE = re.compile(r"\$\{(\w+)(?::[?-]([^}]*))?\}")
_SECONDS = re.compile(r"(?:(\d+)m)?(?:(\d+)s)?")


class MissingVariable(Exception):
    """A variable that the Compose file requires is not set."""


def compose_file(variables: Mapping[str, str] = SECRETS) -> Tree:
    def value(found: re.Match[str]) -> str:
        if found[1] in variables:
            return variables[found[1]]
        raise MissingVariable(f"{found[1]}: {found[2]}")

    return yaml.safe_load(_VARIABLE.sub(value, (COMPOSE / "compose.yaml").read_text()))


def services() -> dict[str, Tree]:
    return compose_file()["services"]


def seconds(duration: str) -> int:
    found = _SECONDS.fullmatch(duration)
    assert found is not None, duration
    return 60 * int(found[1] or 0) + int(found[2] or 0)


class RunningServices:
    """Processes of the services without a profile, each with its own loopback ports."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._ports: dict[tuple[str, str], int] = {}
        self.processes: dict[str, ChildProcess] = {}
        self.services = {name: each for name, each in services().items() if "profiles" not in each}

    def port(self, service: str, port: int | str) -> int:
        """Port of this machine for a port in the service's container."""
        return self._ports.setdefault((service, str(port)), free_port())

    def start(self) -> None:
        conditions = {name: each.get("depends_on", {}) for name, each in self.services.items()}
        for name in TopologicalSorter(conditions).static_order():
            for needed, how in conditions[name].items():
                if how["condition"] == "service_completed_successfully":
                    assert self.processes[needed].wait_until_ended() == 0, self.processes[needed].log()
                else:
                    self.wait_until_healthy(needed)
            self._start(name)

    def wait_until_healthy(self, name: str) -> None:
        """Repeat the service's health check until it succeeds, at most `retries` times."""
        check = self.services[name]["healthcheck"]
        kind, *test = check["test"]
        assert kind == "CMD"
        command = self._program(self._inside(name, test))
        log = ""
        for _ in range(check["retries"]):
            with contextlib.suppress(subprocess.TimeoutExpired):
                # A loaded machine may need more than the check's timeout to start a process.
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
                if done.returncode == 0:
                    return
                log = done.stdout + done.stderr
            time.sleep(seconds(check["interval"]))
        started = self.processes.get(name)
        raise AssertionError(f"{name} is not healthy\n{log}\n{started.log() if started else ''}")

    def _start(self, name: str) -> None:
        service = self.services[name]
        if name == "postgres":
            server = self._stack.enter_context(postgres(password=service["environment"]["POSTGRES_PASSWORD"]))
            self._ports[name, "5432"] = server.port
            # As the image does.
            asyncio.run(_create_database(server, service["environment"]["POSTGRES_DB"]))
            return
        command = self._inside(name, service["command"])
        if service["image"].startswith("headgate:"):
            command = [*_HEADGATE, *command]
        elif service["image"].startswith("prom/prometheus:"):
            command = [find_program("prometheus"), *command]
        else:
            command = [stores.find_program(command[0]), *command[1:]]
        process = ChildProcess(name, command, service.get("environment", {}))
        self.processes[name] = self._stack.enter_context(process)

    def _inside(self, name: str, words: Sequence[str]) -> list[str]:
        mounts = self._mounts(name)
        return [self._translated(name, word, mounts) for word in words]

    def _translated(self, name: str, text: str, mounts: Mapping[str, Path]) -> str:
        """Replace addresses of services, the service's own addresses and ports, and directories of mounts."""
        text = re.sub(r"\b(?:127\.0\.0\.1|0\.0\.0\.0):(\d+)", lambda own: f"127.0.0.1:{self.port(name, own[1])}", text)
        for other in self.services:
            text = re.sub(
                rf"(?<![\w-]){other}:(\d+)", lambda found, of=other: f"127.0.0.1:{self.port(of, found[1])}", text
            )
        for target, source in mounts.items():
            text = re.sub(rf"(?<![\w/]){target}(?![\w-])", str(source), text)
        if re.fullmatch(r"\d{4}", text):
            return str(self.port(name, text))
        return "127.0.0.1" if text == "0.0.0.0" else text

    def _mounts(self, name: str) -> dict[str, Path]:
        """Directory of this machine for each mounted directory. Files are copied, with addresses replaced."""
        service = self.services[name]
        pairs = [each.split(":")[:2] for each in service.get("volumes", [])]
        pairs += [["", each.split(":")[0]] for each in service.get("tmpfs", []) if each != "/tmp"]
        mounts = {target: self._folder / name / target.lstrip("/") for _, target in pairs}
        for source, target in pairs:
            if mounts[target].exists():
                continue
            mounts[target].mkdir(parents=True)
            for file in (COMPOSE / source).iterdir() if source.startswith(".") else ():
                (mounts[target] / file.name).write_text(self._translated(name, file.read_text(), mounts))
        return mounts

    def _program(self, words: Sequence[str]) -> list[str]:
        program = sys.executable if words[0] == "python" else words[0]
        return [program, *words[1:]]


async def _create_database(server: Postgres, name: str) -> None:
    link = await asyncpg.connect(server.url)
    await link.execute(f"create database {name}")
    await link.close()


@contextmanager
def running_services(folder: Path) -> Iterator[RunningServices]:
    """Run all services without a profile until the block ends."""
    with ExitStack() as stack:
        running = RunningServices(folder, stack)
        running.start()
        for name in running.services:
            if "healthcheck" in running.services[name]:
                running.wait_until_healthy(name)
        yield running
