"""A Ray fleet with real engine processes and a real gateway scales, replaces engines and stops.

The gateway's endpoint list is kept in sync with the fleet through configuration reloads, so endpoints join and drain as
in production.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headgate.core.summary import EndpointSummary
from headgate.fleets.processes.options import ProcessOptions
from headgate.fleets.processes.spec import ProcessSpec
from headgate.fleets.ray.fleet import UNPLACED_URL, RayFleet
from headgate.fleets.ray.options import RayOptions
from headgate.model.units import MILLISECOND, SECOND
from headgate.ports.engine import ProbeState
from headgate.ports.fleet import Phase, ProbeResult, ScalableFleet
from testing.gateway import Config, GatewayInLoop, a_config, chat, events_of, gateway_in_loop
from tests.fleets.ray_node import CPUS, ENGINE, RayNode, ray_node
from tests.fleets.scaled import frozen
from tests.house.small_tree import PROJECT

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

SECONDS_MAX = 120.0
LEAVE_SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def node() -> Iterator[RayNode]:
    with ray_node() as found:
        yield found


class Told:
    """Fleet observer that records its calls."""

    def __init__(self) -> None:
        self.starts: list[tuple[str, Mapping[Phase, int]]] = []
        self.drains: list[str] = []
        self.troubles: list[tuple[str, str]] = []
        self.recoveries: list[str] = []

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Troubles other than waits: placing an engine on a busy node can take five seconds and is reported as one."""
        return [each for each in self.troubles if not each[1].startswith("no node has enough free capacity: ")]

    def started(self, endpoint_id: str, took_ns: Mapping[Phase, int]) -> None:
        self.starts.append((endpoint_id, took_ns))

    def drained(self, endpoint_id: str, took_ns: int) -> None:
        self.drains.append(endpoint_id)

    def problem_found(self, subject: str, problem: str) -> None:
        self.troubles.append((subject, problem))

    def problem_cleared(self, what: str) -> None:
        self.recoveries.append(what)


class Running:
    """A fleet, and a gateway that serves from it once an endpoint has started."""

    def __init__(self, node: RayNode, folder: Path, http: aiohttp.ClientSession, **options: Any) -> None:
        self.folder, self.http = folder, http
        self.told = Told()
        self.gateway: GatewayInLoop | None = None
        self.config: Config = {}
        self._changes = asyncio.Event()
        terms = ProcessSpec(
            pool="small",
            model="fake",
            log_directory=folder / "logs",
            options=ProcessOptions(
                in_flight_max=8,
                command=ENGINE,
                environment={"PYTHONPATH": str(PROJECT / "src"), "WHERE": "http://{host}:{port}"},
                restart_backoff_ns=200 * MILLISECOND,
                restart_backoff_ns_max=2 * SECOND,
            ),
        )
        ray = {"cpus": 1.0} | options
        self.fleet = RayFleet(
            terms,
            RayOptions(python=node.python, address=node.address, **ray),
            endpoints=1,
            endpoints_min=0,
            endpoints_max=3,
            look=self._look,
            warm_up=self._warm_up,
            lookup=self._lookup,
            observer=self.told,
            other_ports=tuple,
        )

    async def _look(self, url: str) -> ProbeResult:
        try:
            async with self.http.get(f"{url}/health") as answer:
                return ProbeResult(ProbeState.READY if answer.status == 200 else ProbeState.LOADING)
        except aiohttp.ClientError as error:
            return ProbeResult(ProbeState.UNREACHABLE, str(error))

    async def _warm_up(self, url: str) -> str | None:
        async with self.http.post(f"{url}/v1/chat/completions", json=chat(model="fake", max_tokens=1)) as answer:
            return None if answer.status == 200 else await answer.text()

    def _lookup(self, endpoint_id: str) -> EndpointSummary | None:
        if self.gateway is None:
            return None
        endpoints = self.gateway.gateway._host.summary().endpoints
        return next((each for each in endpoints if each.id == endpoint_id), None)

    def changed(self) -> None:
        self._changes.set()

    def urls(self) -> dict[str, str]:
        return {each.id: each.url for each in self.fleet.endpoints() if each.started}

    async def until_started(self, count: int) -> dict[str, str]:
        await until(lambda: len(self.urls()) == count)
        return self.urls()

    @asynccontextmanager
    async def served(self) -> AsyncIterator[GatewayInLoop]:
        """Run a gateway with the fleet's endpoints."""
        self.config = a_config(*(await self.until_started(1)).values())
        self._follow()
        async with gateway_in_loop(self.config, self.folder) as self.gateway:
            following = asyncio.create_task(self._follow_for_ever())
            try:
                yield self.gateway
            finally:
                following.cancel()
                with suppress(asyncio.CancelledError):
                    await following
        self.gateway = None

    def _follow(self) -> None:
        listed = [{"name": name.partition("/")[2], "url": url} for name, url in self.urls().items()]
        self.config["pools"]["small"]["endpoints"] = listed

    async def _follow_for_ever(self) -> None:
        assert self.gateway is not None
        while True:
            await self._changes.wait()
            self._changes.clear()
            if self.urls():
                self._follow()
                await self.gateway.rewrite(self.config)


@asynccontextmanager
async def a_fleet(node: RayNode, folder: Path, **options: Any) -> AsyncIterator[Running]:
    async with aiohttp.ClientSession() as http:
        running = Running(node, folder, http, **options)
        await running.fleet.start(running.changed)
        try:
            yield running
        finally:
            await running.fleet.stop()


def runs(pid: int) -> bool:
    """Return whether the process is running. A zombie does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def environment_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_text().split("\0")


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not reached():
            await asyncio.sleep(0.05)


async def gone(pid: int) -> None:
    await until(lambda: not runs(pid))


async def a_stream(gateway: GatewayInLoop) -> str:
    """Stream for a few seconds and return the last event."""
    async with gateway.post(chat(stream=True, max_tokens=600, ignore_eos=True)) as answer:
        assert answer.status == 200, await answer.text()
        return events_of(await answer.read())[-1]


# Must run first on the node, because an earlier test's resources are not freed immediately.
async def test_endpoint_without_a_node_stays_pending_and_reports_it(node: RayNode, tmp_path: Path) -> None:
    async with a_fleet(node, tmp_path, cpus=CPUS + 1.0) as running:
        await until(lambda: bool(running.told.troubles))
        [waiting] = running.fleet.endpoints()
        await running.fleet.scale(0)
        await until(lambda: not running.fleet.endpoints())

    assert (waiting.started, waiting.url) == (False, UNPLACED_URL)
    [(_, problem)] = running.told.troubles
    assert problem == "no node has enough free capacity: 5 CPU (4 of 4 free); add nodes or lower scaling.endpoints_max"


async def test_no_stream_is_truncated_while_scaling_to_three_and_back(node: RayNode, tmp_path: Path) -> None:
    async with a_fleet(node, tmp_path) as running, running.served() as gateway:
        assert isinstance(running.fleet, ScalableFleet)
        await running.fleet.scale(3)
        three = await running.until_started(3)
        await gateway.wait_until_ready(3, seconds_max=SECONDS_MAX)
        await until(lambda: {name for name, _ in running.told.starts} == set(three))
        pids = running.fleet.pids()
        streams: list[asyncio.Task[str]] = []
        busy = False
        while not busy:
            streams += [asyncio.create_task(a_stream(gateway)) for _ in range(12)]
            await gateway.wait_for_status(
                lambda status: all(each["in_flight"] for each in status["endpoints"]), seconds_max=SECONDS_MAX
            )
            # No stream ends while the fleet shrinks. Streams that ended before this process froze the engines become
            # known a moment later; if an engine has none left, the attempt is repeated.
            with ExitStack() as still:
                for pid in pids.values():
                    still.enter_context(frozen(pid))
                await asyncio.sleep(0.5)
                endpoints = (await gateway.status())["endpoints"]
                if busy := all(each["in_flight"] for each in endpoints):
                    await running.fleet.scale(1)
                    one = await running.until_started(1)
                    leaving = await gateway.wait_for_status(
                        lambda status: sum(each["leaving"] for each in status["endpoints"]) == 2,
                        seconds_max=SECONDS_MAX,
                    )
            if not busy:
                await asyncio.gather(*streams)
        draining = [each for each in leaving["endpoints"] if each["leaving"]]
        endings = await asyncio.gather(*streams)
        given_up = [pid for name, pid in pids.items() if name not in one]
        for pid in given_up:
            await gone(pid)
        kept = [pid for pid in pids.values() if runs(pid)]

    assert len(set(three.values())) == 3
    assert len(endpoints) == 3
    assert all(each["in_flight"] for each in draining), "the drained replicas had no requests in flight"
    assert set(endings) == {"[DONE]"}
    assert sorted(running.told.drains) == sorted(set(three) - set(one))
    assert kept == [pids[name] for name in one]
    assert all(set(took) == set(Phase) for _, took in running.told.starts)
    assert running.told.failures == []


async def test_killed_engine_is_replaced(node: RayNode, tmp_path: Path) -> None:
    async with a_fleet(node, tmp_path) as running:
        [(name, before)] = (await running.until_started(1)).items()
        pid = running.fleet.pids()[name]
        os.kill(pid, signal.SIGKILL)
        await running.until_started(0)
        [(again, after)] = (await running.until_started(1)).items()
        next_pid = running.fleet.pids()[name]

    assert (again, after != before, next_pid != pid) == (name, True, True)
    [(what, problem)] = running.told.failures
    assert what == name
    assert problem.startswith("exited with status -9; restarting")
    assert "ray logs actor --id" in problem


async def test_engines_exit_with_a_killed_driver_and_are_restarted(node: RayNode, tmp_path: Path) -> None:
    async with a_fleet(node, tmp_path) as running:
        [name] = await running.until_started(1)
        pid, driver = running.fleet.pids()[name], running.fleet.driver_pid
        assert driver is not None
        os.kill(driver, signal.SIGKILL)
        # Done before waiting for the old process to exit, since its replacement may start first.
        await running.until_started(0)
        await gone(pid)
        [again] = await running.until_started(1)
        next_driver = running.fleet.driver_pid

    assert again == name
    assert next_driver not in (None, driver)
    assert "the Ray driver exited" in running.told.failures[0][1]


async def test_invalid_resources_are_reported_with_advice(node: RayNode, tmp_path: Path) -> None:
    async with a_fleet(node, tmp_path, resources={"GPU": 1.0}) as running:
        await until(lambda: bool(running.told.failures))

    [(_, problem), *_] = running.told.failures
    assert problem.startswith("exited before it was ready; restarting in 0.2 s; Ray: ")
    assert problem.endswith("; correct fleet.cpus, gpus or resources")


async def test_engine_environment_contains_its_address(node: RayNode, tmp_path: Path) -> None:
    async with a_fleet(node, tmp_path) as running:
        [(name, url)] = (await running.until_started(1)).items()
        environment = environment_of(running.fleet.pids()[name])

    assert f"WHERE={url}" in environment


async def test_killed_actor_ends_its_engine_and_both_are_replaced(node: RayNode, tmp_path: Path) -> None:
    async with a_fleet(node, tmp_path) as running:
        [(name, before)] = (await running.until_started(1)).items()
        pid = running.fleet.pids()[name]
        os.kill(parent_of(pid), signal.SIGKILL)
        await running.until_started(0)
        await gone(pid)
        [(again, after)] = (await running.until_started(1)).items()

    assert (again, after != before) == (name, True)
    [(_, problem)] = running.told.failures
    assert problem.startswith("exited with status -1; restarting")
    assert "; Ray: " in problem


async def test_lost_cluster_ends_engines_and_driver_and_stop_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How long a driver tries to reconnect to its cluster; the default is a minute.
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "5")
    with ray_node() as node:
        async with a_fleet(node, tmp_path) as running:
            [name] = await running.until_started(1)
            pid, driver = running.fleet.pids()[name], running.fleet.driver_pid
            assert driver is not None
            node.process.kill()
            await gone(pid)
            await gone(driver)
            await running.until_started(0)
            # Ray tries to reconnect for minutes, and `stop` must not wait for that.
            await asyncio.sleep(1.0)
            began = asyncio.get_running_loop().time()
            await running.fleet.stop()
            took_s = asyncio.get_running_loop().time() - began

    assert running.told.failures[0][1].startswith("exited with status -1; restarting")
    assert took_s < LEAVE_SECONDS_MAX


async def test_stopped_fleet_leaves_no_engine_or_driver(node: RayNode, tmp_path: Path) -> None:
    async with a_fleet(node, tmp_path) as running:
        await running.until_started(1)
        pids, driver = list(running.fleet.pids().values()), running.fleet.driver_pid
        await running.fleet.stop()
        assert driver is not None
        for pid in (*pids, driver):
            await gone(pid)

    assert len(pids) == 1
    assert running.fleet.driver_pid is None
    assert node.process.exit_status is None, "stopping the fleet must not stop the cluster"
