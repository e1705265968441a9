"""Simulated engines and load tests, in the test's event loop or as separate processes."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from headgate.hosts.local.clock import SystemClock
from headgate.model.engine_profile import TINY
from headgate.simulation.server.engine_server import EngineServer
from headgate.simulation.server.options import EngineOptions
from testing.ports import free_ports
from testing.processes import ChildProcess

HEADGATE = (sys.executable, "-m", "headgate.cli.main")


@asynccontextmanager
async def engine_in_loop(*, speed_up: float = 1.0, record: Path | None = None) -> AsyncIterator[str]:
    """Run a simulated engine with the model `sim` in this event loop and return its URL."""
    options = EngineOptions(profile=TINY, model="sim", speed_up=speed_up, record_path=record)
    async with EngineServer(options, SystemClock()) as engine:
        yield engine.url


@contextmanager
def simulated_engines(count: int, *arguments: str, model: str = "sim") -> Iterator[list[str]]:
    """Run `count` simulated engines in one process and return their URLs."""
    ports = free_ports(count)
    first = ports[0]
    command = [*HEADGATE, "engine", "--model", model, "--port", str(first), "--count", str(count), *arguments]
    with ChildProcess("engines", command) as process:
        urls = [f"http://127.0.0.1:{first + number}" for number in range(count)]
        for url in urls:
            process.wait_until_ok(f"{url}/health", seconds_max=120)
        yield urls


def start_loadtest(url: str, *arguments: str, environment: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    command = [*HEADGATE, "loadtest", "--url", url, "--json", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True, env=environment
    )


def loadtest_result(loadtest: "subprocess.Popen[str]", seconds_max: float) -> dict:
    out, _ = loadtest.communicate(timeout=seconds_max)
    return json.loads(out)


def write_trace(file: Path, rows: Sequence[tuple[float, int, int]]) -> None:
    """Write a trace for `headgate loadtest`: arrival time, prompt tokens and output tokens of each request."""
    lines = ["at_s,prompt_tokens,output_tokens", *(f"{at_s},{prompt},{output}" for at_s, prompt, output in rows)]
    file.write_text("\n".join(lines) + "\n")


def resident_mib(pid: int) -> float:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024
