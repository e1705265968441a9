"""A real Ray node that a test can start and stop.

`scripts/tool_env ray` finds or creates the Python environment. If the node cannot start, the test fails rather than
being skipped. The node listens on the loopback interface only. Its processes share the process group that is started
here, and anything else that Ray starts exits with them. While the node is running, its token and other settings are in
our environment variables, just as an operator would set them for the gateway.
"""

import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from testing.ports import free_port
from testing.processes import ChildProcess
from tests.house.small_tree import PROJECT

START_SECONDS_MAX = 240
CPUS = 4
ENGINE = (
    *(sys.executable, "-m", "headgate.cli.main", "engine", "--model", "{model}"),
    *("--host", "{host}", "--port", "{port}"),
)
"""Command that starts a simulated engine."""


@dataclass(frozen=True)
class RayNode:
    python: str
    address: str
    process: ChildProcess


def ray_python() -> str:
    command = [PROJECT / "scripts/tool_env", "ray"]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return f"{printed.splitlines()[-1]}/bin/python"


@contextmanager
def ray_node() -> Iterator[RayNode]:
    python, port = ray_python(), free_port()
    # The length of Unix socket paths is limited, which leaves about 50 characters for the directory.
    folder = Path(tempfile.mkdtemp(prefix="hg-ray-"))
    environment = {
        # Makes Ray use the loopback address for the node, as it does on systems without cluster support.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(folder),
    }
    command = [
        *(python, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port", str(port)),
        *("--num-cpus", str(CPUS), "--object-store-memory", str(100 * 2**20), "--temp-dir", str(folder)),
        *("--include-dashboard=false", "--disable-usage-stats"),
        *("--dashboard-agent-listen-port", str(free_port()), "--dashboard-agent-grpc-port", str(free_port())),
        *("--metrics-export-port", str(free_port())),
    ]
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            with ChildProcess("ray", command) as process:
                _wait_until_started(process)
                yield RayNode(python, f"127.0.0.1:{port}", process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_started(process: ChildProcess) -> None:
    give_up_at = time.monotonic() + START_SECONDS_MAX
    while "Ray runtime started" not in process.log():
        assert process.exit_status is None, process.log()
        assert time.monotonic() < give_up_at, process.log()
        time.sleep(0.2)
