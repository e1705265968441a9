"""How does a driver keep the engines of one pool running in a Ray cluster?

A program of its own, run by an interpreter that has Ray; the gateway's need not have it. It knows nothing of Headgate:
orders come as lines of JSON on its standard input, news go out as such lines on its standard output.

    {"run": 7, "command": ["vllm", "--port", "{port}"], "environment": {}, "cpus": 1, "gpus": 1, "resources": {}}
    {"end": 7, "within_s": 10}

    {"up": "2.60.0"}                                    it has a connection to the cluster
    {"waits": 7, "why": "..."}                          no node has room for it so far
    {"placed": 7, "host": "10.0.0.7", "port": 40001, "pid": 123, "actor": "..."}
    {"ended": 7, "status": 0}  or  {"ended": 7, "problem": "..."}

Each engine is the child of one Ray actor. The actor takes the processors and the memory that Ray gives it, chooses a
port on whichever node it came to, and fills in `{host}` and `{port}` there, in the environment too. Actors live no
longer than this driver, and engines no longer than their actor, however that one ends: a watcher beside each engine is
blocked on a pipe that only the actor holds, and kills the engine's whole group when the pipe ends. When our own input
ends, the gateway is gone, and everything is given up.
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
WAITS_S = 5.0
"""How often it is said that an engine waits for a node."""
STOP_S_MAX = 10.0
"""For all engines together when the gateway is gone."""
GATE = 'read -r _ || exit 1; exec "$@" </dev/null'
"""Becomes the engine once something is said to it, which is when its watcher stands."""
WATCHER = 'read -r _; kill -s KILL -- "-$1"'

# Its types are known only where it is installed.
ray: Any = importlib.import_module("ray")


class Engine:
    """What an actor is: one engine process on the node where it runs."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> dict[str, object]:
        """Its output goes where the actor's own goes, into Ray's logs."""
        host, port = self._place()

        def filled(text: str) -> str:
            return text.replace("{host}", host).replace("{port}", str(port))

        self._process = process = subprocess.Popen(  # noqa: S603 (the operator's own command)
            ["/bin/sh", "-c", GATE, "gate", *map(filled, command)],
            stdin=subprocess.PIPE,
            env={**os.environ, **{name: filled(value) for name, value in environment.items()}},
            start_new_session=True,
        )
        self._watcher = subprocess.Popen(  # noqa: S603 (ours)
            ["/bin/sh", "-c", WATCHER, "watcher", str(process.pid)], stdin=subprocess.PIPE, start_new_session=True
        )
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
        actor = importlib.import_module("ray").get_runtime_context().get_actor_id()
        return {"host": host, "port": port, "pid": process.pid, "actor": actor}

    def wait(self) -> int:
        """Until the engine ends: its exit status, minus the signal's number when a signal ended it."""
        assert self._process is not None
        status = self._process.wait()
        self._kill_group()
        return status

    def end(self, within_s: float) -> None:
        """Asks the engine to end, and after so long ends all of its group."""
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
    def _place() -> tuple[str, int]:
        """An address of this node that other nodes reach, and a port that is free there."""
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

    def tell(self, **news: object) -> None:
        os.write(self._news, json.dumps(news).encode() + b"\n")

    async def obey(self, orders: asyncio.StreamReader) -> None:
        """Until there are no more orders, and then until everything has been given up."""
        while line := await orders.readline():
            order = json.loads(line)
            self._later(self._run(order) if "run" in order else self._end(order["end"], order["within_s"]))
        for run in list(self._actors):
            self._later(self._end(run, STOP_S_MAX / 2))
        if self._runs:
            await asyncio.wait(self._runs, timeout=STOP_S_MAX)

    def _later(self, work: Any) -> None:
        self._runs.add(task := asyncio.ensure_future(work))
        task.add_done_callback(self._runs.discard)

    async def _run(self, order: dict[str, Any]) -> None:
        run: int = order["run"]
        needs = {"num_cpus": order["cpus"], "num_gpus": order["gpus"], "resources": order["resources"]}
        try:
            actor = ray.remote(Engine).options(max_concurrency=4, max_restarts=0, **needs).remote()
        except (TypeError, ValueError) as error:
            self.tell(ended=run, problem=f"Ray: {_first_line(error)}; mend fleet.cpus, gpus or resources")
            return
        self._actors[run] = actor
        try:
            waiting = asyncio.ensure_future(self._say_that_it_waits(run, order))
            try:
                found = await actor.start.remote(order["command"], order["environment"])
            finally:
                waiting.cancel()
            self._placed.add(run)
            self.tell(placed=run, **found)
            self.tell(ended=run, status=await actor.wait.remote())
        except ray.exceptions.RayError as error:
            self.tell(ended=run, problem=f"Ray: {_first_line(error)}")
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

    async def _say_that_it_waits(self, run: int, order: Mapping[str, Any]) -> None:
        wanted = {"CPU": order["cpus"], "GPU": order["gpus"], **order["resources"]}
        while True:
            await asyncio.sleep(WAITS_S)
            there, free = ray.cluster_resources(), ray.available_resources()
            needs = (
                f"{count:g} {name} ({free.get(name, 0):g} of {there.get(name, 0):g} free)"
                for name, count in wanted.items()
                if count
            )
            self.tell(waits=run, why=f"no node has room for {', '.join(needs)}")


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _leave_with_the_gateway(connected: threading.Event) -> None:
    """Ray tries for minutes to reach a cluster that is not there, and listens to nobody meanwhile."""
    orders = select.poll()
    orders.register(0, 0)
    while not connected.wait(1.0):
        if orders.poll(0):
            os._exit(1)


async def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Keeps the engines of one Headgate pool running in a Ray cluster.")
    parser.add_argument("--address", default="auto", help="of the cluster; local starts one on this machine (auto)")
    address: str = parser.parse_args(arguments).address
    # Whatever else writes to the standard output writes to the log instead.
    news = os.dup(1)
    os.dup2(2, 1)
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    connected = threading.Event()
    threading.Thread(target=_leave_with_the_gateway, args=(connected,), daemon=True).start()
    try:
        ray.init(address=address, log_to_driver=False, include_dashboard=False if address == "local" else None)
    except (ConnectionError, RuntimeError, ValueError) as error:
        os.write(news, json.dumps({"failed": f"no Ray cluster at {address!r}: {_first_line(error)}"}).encode() + b"\n")
        return 1
    finally:
        connected.set()
    driver = Driver(news)
    driver.tell(up=ray.__version__)
    await driver.obey(orders)
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
