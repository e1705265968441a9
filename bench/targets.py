"""How are the upstream, nginx and the gateway started, each on its core and on ports of its own?

All listen on loopback, live in a temporary folder and are stopped by their ids when the block that started them is
left, whatever ends it; should this process be killed, a watcher beside each of them ends it
(testing/processes.py).
"""

import json
import os
import secrets
import shutil
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

from bench.cores import family_of, started_on
from bench.upstream import MODEL
from testing.gateway import WITHOUT_TARGETS
from testing.ports import free_port
from testing.processes import ChildProcess, MissingPart

ROOT = Path(__file__).parents[1]
GATEWAY = (sys.executable, "-m", "headgate.cli.main")
KEY_SECRET = "HEADGATE_KEY_SECRET"
START_SECONDS_MAX = 120.0
IN_FLIGHT_MAX = 1_000
"""More than any load here holds open: what is measured is the way through, not the waiting."""
SPEED = {"step": "10ms"}
"""Given instead of learned: the upstream is so fast that the gateway would measure itself."""

_NGINX = """\
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    tcp_nodelay on;
    keepalive_requests 100000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream engine {{
        server 127.0.0.1:{upstream_port};
        keepalive 1024;
        keepalive_requests 100000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    port: int
    model: str
    key: str
    process: ChildProcess
    status_url: str = ""
    """Of the gateway: what it knows of its engine."""

    def wait_until_idle(self) -> None:
        """Until the gateway has heard from its engine that nothing runs there."""
        _wait_until(self.process, self.status_url, "idle", _all_idle)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(family_of(self.process.pid))


@contextmanager
def upstream(core: int) -> Generator[Target]:
    port = free_port()
    with started_on(core):
        process = ChildProcess(
            "upstream", [sys.executable, "-m", "bench.upstream", str(port)], {"PYTHONPATH": str(ROOT)}
        )
    with process:
        process.wait_until_ok(f"http://127.0.0.1:{port}/health", START_SECONDS_MAX)
        yield Target("upstream", port, MODEL, "none", process)


def find_nginx(which: Callable[..., str | None] = shutil.which) -> str:
    # Debian installs it where the search path of plain users does not lead.
    found = which("nginx") or which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise MissingPart("nginx, which the gateway is compared with, is not installed; apt-get install nginx-light")
    return found


@contextmanager
def nginx(core: int, upstream_port: int, folder: Path) -> Generator[Target]:
    port = free_port()
    folder.mkdir()
    file = folder / "nginx.conf"
    file.write_text(_NGINX.format(folder=folder, upstream_port=upstream_port, port=port))
    with started_on(core):
        process = ChildProcess("nginx", [find_nginx(), "-p", folder, "-c", file, "-e", "stderr"])
    with process:
        process.wait_until_ok(f"http://127.0.0.1:{port}/health", START_SECONDS_MAX)
        yield Target("nginx", port, MODEL, "none", process)


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
    """As an operator runs it: a tenant with a key, classes, scheduling, metrics, an engine that is watched.

    `settings` go on top of its configuration.
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
            | ({"watches_whole_answers": True} if watches_whole_answers else {})
        },
        # Another name than the engine's, so that the body is rewritten as it often must be.
        "models": {"public-model": "bench"},
        "tenants": {"bench": {"keys": [_hash_of(key, command, variables)]}},
        # The upstream answers at once, however many wait: a target would only be in the way.
        "classes": WITHOUT_TARGETS,
    }
    folder.mkdir()
    file = folder / "headgate.yaml"
    file.write_text(yaml.safe_dump(config | dict(settings or {})))
    with started_on(core):
        process = ChildProcess("gateway", [*command, "serve", str(file)], variables)
    with process:
        process.wait_until_ok(f"http://127.0.0.1:{admin_port}/ready", START_SECONDS_MAX)
        status_url = f"http://127.0.0.1:{admin_port}/status"
        _wait_until(process, status_url, "ready", _all_ready)
        yield Target("gateway", port, "public-model", key, process, status_url)


def _hash_of(key: str, command: Sequence[str], variables: dict[str, str]) -> str:
    """By the command line, as an operator gets it; another version of the gateway may hash otherwise."""
    done = subprocess.run(
        [*command, "keys", "hash"], input=key, capture_output=True, text=True, env=os.environ | variables, check=False
    )
    if done.returncode != 0:
        raise MissingPart(f"`{' '.join(command)} keys hash` failed: {done.stderr.strip()}; correct --gateway-command")
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
            raise MissingPart(f"the gateway did not find its engine {state}; its log ends in:\n{process.log()[-2000:]}")
        time.sleep(0.05)
