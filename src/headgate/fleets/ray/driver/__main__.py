"""Ray driver that runs a pool's engines in a cluster.

This is a separate program, run by an interpreter that has Ray installed, so that the gateway's interpreter does not
need it. It does not depend on Headgate. It reads commands as lines of JSON from standard input and writes events as
lines of JSON to standard output.

    {"run": 7, "command": ["vllm", "--port", "{port}"], "environment": {}, "cpus": 1, "gpus": 1, "resources": {}}
    {"end": 7, "within_s": 10}

    {"up": "2.60.0"}                                    connected to the cluster
    {"waits": 7, "why": "..."}                          no node has enough capacity so far
    {"placed": 7, "host": "10.0.0.7", "port": 40001, "pid": 123, "actor": "..."}
    {"ended": 7, "status": 0}  or  {"ended": 7, "problem": "..."}

Each engine is the child of one Ray actor. The actor reserves CPUs and GPUs, chooses a port on its node, and fills in
`{host}` and `{port}` in the command and the environment. Actors end with this driver, and engines end with their actor,
whatever ends it: a watcher next to each engine blocks on a pipe that only the actor holds, and kills the engine's
process group when the pipe closes. When standard input closes, the gateway is gone, and the driver stops everything.
"""

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

LINE_BYTES_MAX = 1024 * 1024
PENDING_REPORT_S = 5.0
"""Interval in seconds between reports that an engine is still waiting for a node."""
STOP_S_MAX = 10.0
"""Maximum time to stop all engines once the gateway is gone, in seconds."""
GATE_SCRIPT = 'read -r _ || exit 1; exec "$@" </dev/null'
"""Shell script that becomes the engine once it reads a line, which is sent when its watcher is running."""
WATCHDOG_SCRIPT = 'read -r _; kill -s KILL -- "-$1"'

# Ray's types are available only if Ray is installed.
ray: Any = importlib.import_module("ray")


class EngineActor:
    """Ray actor that runs one engine process on its node."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> dict[str, object]:
        """Starts the engine. Its output goes to the actor's output in Ray's logs."""
        host, port = self._host_and_port()

        def filled(text: str) -> str:
            return text.replace("{host}", host).replace("{port}", str(port))

        self._process = process = subprocess.Popen(  # noqa: S603 (the operator's own command)
            ["/bin/sh", "-c", GATE_SCRIPT, "gate", *map(filled, command)],
            stdin=subprocess.PIPE,
            env={**os.environ, **{name: filled(value) for name, value in environment.items()}},
            start_new_session=True,
        )
        self._watcher = subprocess.Popen(  # noqa: S603 (a constant command)
            ["/bin/sh", "-c", WATCHDOG_SCRIPT, "watcher", str(process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
        actor = importlib.import_module("ray").get_runtime_context().get_actor_id()
        return {"host": host, "port": port, "pid": process.pid, "actor": actor}

    def wait(self) -> int:
        """Waits for the engine and returns its exit status, or the negated signal number if a signal ended it."""
        assert self._process is not None
        status = self._process.wait()
        self._kill_group()
        return status

    def end(self, within_s: float) -> None:
        """Sends SIGTERM to the engine, and SIGKILL to its group after `within_s` seconds."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        self._kill_group()

    def _kill_group(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @staticmethod
    def _host_and_port() -> tuple[str, int]:
        """Returns an address of this node that other nodes can reach, and a free port."""
        host: str = importlib.import_module("ray").util.get_node_ip_address()
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
            return host, probe.getsockname()[1]


class Driver:
    def __init__(self, news: int) -> None:
        self._news = news
        self._actors: dict[int, Any] = {}
        self._placed: set[int] = set()
        self._runs: set[asyncio.Task[None]] = set()

    def emit(self, **news: object) -> None:
        os.write(self._news, json.dumps(news).encode() + b"\n")

    async def run(self, orders: asyncio.StreamReader) -> None:
        """Executes commands until the input closes, then stops everything."""
        while line := await orders.readline():
            order = json.loads(line)
            self._spawn_task(self._run(order) if "run" in order else self._end(order["end"], order["within_s"]))
        for run in list(self._actors):
            self._spawn_task(self._end(run, STOP_S_MAX / 2))
        if self._runs:
            await asyncio.wait(self._runs, timeout=STOP_S_MAX)

    def _spawn_task(self, work: Any) -> None:
        self._runs.add(task := asyncio.ensure_future(work))
        task.add_done_callback(self._runs.discard)

    async def _run(self, order: dict[str, Any]) -> None:
        run: int = order["run"]
        needs = {"num_cpus": order["cpus"], "num_gpus": order["gpus"], "resources": order["resources"]}
        try:
            actor = ray.remote(EngineActor).options(max_concurrency=4, max_restarts=0, **needs).remote()
        except (TypeError, ValueError) as error:
            self.emit(ended=run, problem=f"Ray: {_first_line(error)}; correct fleet.cpus, gpus or resources")
            return
        self._actors[run] = actor
        try:
            waiting = asyncio.ensure_future(self._report_pending(run, order))
            try:
                found = await actor.start.remote(order["command"], order["environment"])
            finally:
                waiting.cancel()
            self._placed.add(run)
            self.emit(placed=run, **found)
            self.emit(ended=run, status=await actor.wait.remote())
        except ray.exceptions.RayError as error:
            self.emit(ended=run, problem=f"Ray: {_first_line(error)}")
        finally:
            self._placed.discard(run)
            del self._actors[run]
            ray.kill(actor)

    async def _end(self, run: int, within_s: float) -> None:
        actor = self._actors.get(run)
        if actor is None:
            return
        if run not in self._placed:
            ray.kill(actor)
            return
        with contextlib.suppress(ray.exceptions.RayError):
            await actor.end.remote(within_s)

    async def _report_pending(self, run: int, order: Mapping[str, Any]) -> None:
        wanted = {"CPU": order["cpus"], "GPU": order["gpus"], **order["resources"]}
        while True:
            await asyncio.sleep(PENDING_REPORT_S)
            there, free = ray.cluster_resources(), ray.available_resources()
            needs = (
                f"{count:g} {name} ({free.get(name, 0):g} of {there.get(name, 0):g} free)"
                for name, count in wanted.items()
                if count
            )
            self.emit(waits=run, why=f"no node has enough free capacity: {', '.join(needs)}")


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _exit_with_gateway(connected: threading.Event) -> None:
    """Exits if the gateway exits while `ray.init` is blocking, which can take minutes if the cluster is unreachable."""
    orders = select.poll()
    orders.register(0, 0)
    while not connected.wait(1.0):
        if orders.poll(0):
            os._exit(1)


async def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Run the engines of one Headgate pool in a Ray cluster.")
    parser.add_argument("--address", default="auto", help="Cluster address; local starts a cluster on this machine.")
    address: str = parser.parse_args(arguments).address
    # Redirect all other output from standard output to the log.
    news = os.dup(1)
    os.dup2(2, 1)
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    connected = threading.Event()
    threading.Thread(target=_exit_with_gateway, args=(connected,), daemon=True).start()
    try:
        ray.init(address=address, log_to_driver=False, include_dashboard=False if address == "local" else None)
    except (ConnectionError, RuntimeError, ValueError) as error:
        os.write(news, json.dumps({"failed": f"no Ray cluster at {address!r}: {_first_line(error)}"}).encode() + b"\n")
        return 1
    finally:
        connected.set()
    driver = Driver(news)
    driver.emit(up=ray.__version__)
    await driver.run(orders)
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
