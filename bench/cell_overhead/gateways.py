"""Start gateways that differ only in their host, and put load on them.

All gateways share one upstream that responds immediately (bench/mock_upstream.py). The gateways run on one core; the
store, the scheduler, the upstream and the load generator on another. The comparison therefore reflects how long a
request waits rather than which process gets the core.
"""

import json
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

import msgspec
import yaml

from bench.cli import FailedRequests
from bench.cpu_cores import started_on
from bench.load_generator import LoadPlan, LoadResult
from bench.mock_upstream import MODEL
from bench.targets import GATEWAY, ROOT, SPEED
from headgate.wire.keys import digest
from testing.gateway import NO_TARGETS
from testing.ports import free_port
from testing.processes import ChildProcess, MissingProgram

SECRET = secrets.token_urlsafe(24)
KEYS: Mapping[str, str] = {"interactive": secrets.token_urlsafe(24), "batch": secrets.token_urlsafe(24)}
"""API key of each class's tenant."""
START_S_MAX = 120.0


@dataclass(frozen=True, slots=True)
class RunningGateway:
    name: str
    port: int
    admin_port: int
    process: ChildProcess

    def status(self) -> dict[str, Any]:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"http://127.0.0.1:{self.admin_port}/status", timeout=30) as page:
            found: dict[str, Any] = json.load(page)
            return found

    def wait_until_ready(self) -> None:
        """Wait until all endpoints are ready and, in a cell, until the gateway is following a scheduler."""
        give_up_at = time.monotonic() + START_S_MAX
        while not _is_ready(self):
            if time.monotonic() > give_up_at:
                raise MissingProgram(
                    f"{self.name} is not ready after {START_S_MAX:g} s: no engine or scheduler. "
                    f"Its log:\n{self.process.log()[-2000:]}"
                )
            time.sleep(0.1)


def _is_ready(gateway: RunningGateway) -> bool:
    try:
        status = gateway.status()
    except (OSError, HTTPException, ValueError):
        return False
    cell = status.get("cell")
    followed = cell is None or cell["leads"] or cell["mode"] == "following"
    return followed and all(endpoint["state"] == "ready" for endpoint in status["endpoints"])


@contextmanager
def gateway(
    name: str,
    core: int,
    upstream_port: int,
    folder: Path,
    *,
    in_flight_max: int,
    cell: Mapping[str, object] | None = None,
    verb: str = "serve",
) -> Generator[RunningGateway]:
    port, admin_port = free_port(), free_port()
    patient = {"queue_wait_max": "60s", "first_token_timeout": "60s", "queue_length_max": 10_000, **NO_TARGETS}
    config: dict[str, Any] = {
        "listen": f"127.0.0.1:{port}",
        "admin_listen": f"127.0.0.1:{admin_port}",
        "drain_grace": "1s",
        "key_secret": SECRET,
        "pools": {
            "bench": {
                "engine": "vllm",
                "served_model": MODEL,
                "in_flight_max": in_flight_max,
                "speed": SPEED,
                "endpoints": [f"http://127.0.0.1:{upstream_port}"],
            }
        },
        "models": {"public-model": "bench"},
        "classes": {
            "interactive": {"priority_band": 0, **patient},
            "batch": {"priority_band": 1, "queue_length_per_tenant_max": 10_000, **patient},
        },
        "tenants": {
            each: {"keys": [f"hmac-sha256:{digest(SECRET.encode(), key).hex()}"], "classes": [each]}
            for each, key in KEYS.items()
        },
    }
    if cell is not None:
        config["cell"] = {"member_name": name, **cell}
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(config))
    with started_on(core):
        process = ChildProcess(name, [*GATEWAY, verb, "--config", str(file)])
    with process:
        process.wait_until_ok(f"http://127.0.0.1:{admin_port}/ready", START_S_MAX)
        yield RunningGateway(name, port, admin_port, process)


class RunningLoad:
    """A load generator running against one gateway."""

    def __init__(self, plan: LoadPlan, core: int) -> None:
        self._plan = plan
        command = [sys.executable, "-m", "bench.load_generator", json.dumps(asdict(plan))]
        with started_on(core):
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def result(self) -> LoadResult:
        """Wait for the load generator. Requests may have failed."""
        printed, _ = self._process.communicate(timeout=self._plan.warm_up_s + self._plan.seconds + 60)
        return msgspec.json.decode(printed, type=LoadResult)

    def measured(self) -> LoadResult:
        done = self.result()
        if done.failed:
            raise FailedRequests(f"{done.failed} requests failed; first error: {done.problem}")
        return done


@contextmanager
def running_load(
    to: RunningGateway, core: int, *, service_class: str = "interactive", **how: Any
) -> Generator[RunningLoad]:
    plan = LoadPlan(port=to.port, key=KEYS[service_class], model="public-model", **how)
    under_way = RunningLoad(plan, core)
    try:
        yield under_way
    finally:
        under_way.stop()
