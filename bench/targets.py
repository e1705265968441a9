"""Start the upstream and the gateway, each on its own core and on free ports.

All listen on loopback and use a temporary directory. They are stopped by ID when the block that started them exits. If
this process is killed, a watcher stops them (testing/processes.py).
"""

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.cpu_cores import family_of, started_on
from bench.mock_upstream import MODEL
from testing.gateway import WITHOUT_TARGETS
from testing.ports import free_port
from testing.processes import ChildProcess, MissingProgram

ROOT = Path(__file__).parents[1]
GATEWAY = (sys.executable, "-m", "headgate.cli.main")
KEY_SECRET = "HEADGATE_KEY_SECRET"
START_SECONDS_MAX = 120.0
IN_FLIGHT_MAX = 1_000
"""Maximum requests in flight, above any load here: the benchmarks measure the relay, not the queue."""
SPEED = {"step": "10ms"}
"""Configured engine speed. The upstream is so fast that a learned speed would reflect the gateway itself."""


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    port: int
    model: str
    key: str
    process: ChildProcess
    status_url: str = ""
    """The gateway's status page. Empty for other targets."""

    def wait_until_idle(self) -> None:
        """Wait until the gateway has seen its engine idle."""
        _wait_until(self.process, self.status_url, "idle", _all_idle)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(family_of(self.process.pid))


@contextmanager
def upstream(core: int) -> Generator[Target]:
    port = free_port()
    with started_on(core):
        process = ChildProcess(
            "upstream", [sys.executable, "-m", "bench.mock_upstream", str(port)], {"PYTHONPATH": str(ROOT)}
        )
    with process:
        process.wait_until_ok(f"http://127.0.0.1:{port}/health", START_SECONDS_MAX)
        yield Target("upstream", port, MODEL, "none", process)


@contextmanager
def gateway(
    core: int,
    upstream_url: str,
    folder: Path,
    *,
    command: Sequence[str] = GATEWAY,
    served_model: str = MODEL,
    in_flight_max: int = IN_FLIGHT_MAX,
    watches_whole_answers: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Generator[Target]:
    """Start a gateway as in production: a tenant with a key, classes, scheduling, metrics and a monitored engine.

    `settings` override its configuration.
    """
    port, admin_port = free_port(), free_port()
    key, variables = secrets.token_urlsafe(24), {KEY_SECRET: secrets.token_urlsafe(24)}
    config = {
        "listen": f"127.0.0.1:{port}",
        "admin_listen": f"127.0.0.1:{admin_port}",
        "drain_grace": "1s",
        "key_secret": f"${{{KEY_SECRET}}}",
        "pools": {
            "bench": {
                "engine": "vllm",
                "served_model": served_model,
                "in_flight_max": in_flight_max,
                "speed": SPEED,
                "endpoints": [upstream_url],
            }
            | ({"always_stream_upstream": True} if watches_whole_answers else {})
        },
        # The name differs from the engine's, so that the body is rewritten, as is common in production.
        "models": {"public-model": "bench"},
        "tenants": {"bench": {"keys": [_hash_of(key, command, variables)]}},
        # The upstream responds immediately under any load, so objectives would only interfere.
        "classes": WITHOUT_TARGETS,
    }
    folder.mkdir()
    file = folder / "headgate.yaml"
    file.write_text(yaml.safe_dump(config | dict(settings or {})))
    with started_on(core):
        process = ChildProcess("gateway", [*command, "serve", "--config", str(file)], variables)
    with process:
        process.wait_until_ok(f"http://127.0.0.1:{admin_port}/ready", START_SECONDS_MAX)
        status_url = f"http://127.0.0.1:{admin_port}/status"
        _wait_until(process, status_url, "ready", _all_ready)
        yield Target("gateway", port, "public-model", key, process, status_url)


def _hash_of(key: str, command: Sequence[str], variables: dict[str, str]) -> str:
    """Hash the key with the command line, as an operator would. Other versions of the gateway may hash differently."""
    done = subprocess.run(
        [*command, "keys", "hash"], input=key, capture_output=True, text=True, env=os.environ | variables, check=False
    )
    if done.returncode != 0:
        raise MissingProgram(f"`{' '.join(command)} keys hash` failed: {done.stderr.strip()}; check --gateway-command")
    return done.stdout.strip()


def _all_ready(status: dict[str, Any]) -> bool:
    return all(endpoint["state"] == "ready" for endpoint in status["endpoints"])


def _all_idle(status: dict[str, Any]) -> bool:
    return not any(engine["telemetry"][count] for engine in status["engines"] for count in ("running", "waiting"))


def _wait_until(process: ChildProcess, status_url: str, state: str, reached: Callable[[dict[str, Any]], bool]) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    give_up_at = time.monotonic() + START_SECONDS_MAX
    while True:
        with direct.open(status_url, timeout=30) as page:
            status = json.load(page)
        if reached(status):
            return
        if time.monotonic() > give_up_at:
            raise MissingProgram(
                f"the gateway did not find its engine {state}; end of its log:\n{process.log()[-2000:]}"
            )
        time.sleep(0.05)
