"""Does a fleet in a real Ray cluster grow, shrink, heal and leave, with real engine processes and a real gateway?

The gateway's list of endpoints follows the fleet by reloads, so that what joins and drains does so on the true path.
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
from headgate.fleets.processes.terms import ProcessTerms
from headgate.fleets.ray.fleet import NOWHERE, RayFleet
from headgate.fleets.ray.options import RayOptions
from headgate.model.units import MILLISECOND, SECOND
from headgate.ports.engine import ProbeState
from headgate.ports.fleet import Phase, ScalableFleet, Seen
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
    """What a fleet said of itself."""

    def __init__(self) -> None:
        self.starts: list[tuple[str, Mapping[Phase, int]]] = []
        self.drains: list[str] = []
        self.troubles: list[tuple[str, str]] = []
        self.recoveries: list[str] = []

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Troubles except waits: a busy node may take five seconds to place an engine, which is reported as a wait."""
        return [each for each in self.troubles if not each[1].startswith("no node has room for ")]

    def started(self, endpoint_id: str, took_ns: Mapping[Phase, int]) -> None:
        self.starts.append((endpoint_id, took_ns))

    def drained(self, endpoint_id: str, took_ns: int) -> None:
        self.drains.append(endpoint_id)

    def troubled(self, what: str, problem: str) -> None:
        self.troubles.append((what, problem))

    def recovered(self, what: str) -> None:
        self.recoveries.append(what)


class Running:
    """A fleet, and a gateway that serves from it once there is something to serve from."""

    def __init__(self, node: RayNode, folder: Path, http: aiohttp.ClientSession, **options: Any) -> None:
        self.folder, self.http = folder, http
        self.told = Told()
        self.gateway: GatewayInLoop | None = None
        self.config: Config = {}
        self._changes = asyncio.Event()
        terms = ProcessTerms(
            pool="small",
            model="fake",
            logs=folder / "logs",
            options=ProcessOptions(
                in_flight_max=8,
                command=ENGINE,
                environment={"PYTHONPATH": str(PROJECT / "src"), "WHERE": "http://{host}:{port}"},
                restart_ns=200 * MILLISECOND,
                restart_ns_max=2 * SECOND,
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
            ports_elsewhere=tuple,
        )

    async def _look(self, url: str) -> Seen:
        try:
            async with self.http.get(f"{url}/health") as answer:
                return Seen(ProbeState.READY if answer.status == 200 else ProbeState.LOADING)
        except aiohttp.ClientError as error:
            return Seen(ProbeState.UNREACHABLE, str(error))

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
        """A gateway whose endpoints are the fleet's."""
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
    """Whether there is such a process, and not only its remains."""
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
    """How a stream of some seconds ended: by its last event."""
    async with gateway.post(chat(stream=True, max_tokens=600, ignore_eos=True)) as answer:
        assert answer.status == 200, await answer.text()
        return events_of(await answer.read())[-1]


# Must run first on the node: resources of an earlier test would not be free at once.
async def test_an_endpoint_for_which_no_node_has_room_waits_and_says_so(node: RayNode, tmp_path: Path) -> None:
    async with a_fleet(node, tmp_path, cpus=CPUS + 1.0) as running:
        await until(lambda: bool(running.told.troubles))
        [waiting] = running.fleet.endpoints()
        await running.fleet.scale(0)
        await until(lambda: not running.fleet.endpoints())

    assert (waiting.started, waiting.url) == (False, NOWHERE)
    [(_, problem)] = running.told.troubles
    assert problem == "no node has room for 5 CPU (4 of 4 free); add nodes, or lower scaling.endpoints_max"


async def test_one_endpoint_becomes_three_and_one_again_and_no_stream_is_severed(node: RayNode, tmp_path: Path) -> None:
    async with a_fleet(node, tmp_path) as running, running.served() as gateway:
        assert isinstance(running.fleet, ScalableFleet)
        await running.fleet.scale(3)
        three = await running.until_started(3)
        await gateway.until_ready(3, seconds_max=SECONDS_MAX)
        await until(lambda: {name for name, _ in running.told.starts} == set(three))
        pids = running.fleet.pids()
        streams: list[asyncio.Task[str]] = []
        busy = False
        while not busy:
            streams += [asyncio.create_task(a_stream(gateway)) for _ in range(12)]
            await gateway.until(
                lambda status: all(each["in_flight"] for each in status["endpoints"]), seconds_max=SECONDS_MAX
            )
            # No stream ends while the fleet shrinks. Those that ended before this process froze the engines are
            # known a moment later; if an engine has none left, the attempt is repeated.
            with ExitStack() as still:
                for pid in pids.values():
                    still.enter_context(frozen(pid))
                await asyncio.sleep(0.5)
                endpoints = (await gateway.status())["endpoints"]
                if busy := all(each["in_flight"] for each in endpoints):
                    await running.fleet.scale(1)
                    one = await running.until_started(1)
                    leaving = await gateway.until(
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


async def test_an_engine_that_is_killed_is_replaced_by_another(node: RayNode, tmp_path: Path) -> None:
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
    assert problem.startswith("ended with status -9; it is started again")
    assert "ray logs actor --id" in problem


async def test_without_its_driver_nothing_stays_and_everything_comes_back(node: RayNode, tmp_path: Path) -> None:
    async with a_fleet(node, tmp_path) as running:
        [name] = await running.until_started(1)
        pid, driver = running.fleet.pids()[name], running.fleet.driver_pid
        assert driver is not None
        os.kill(driver, signal.SIGKILL)
        # Before waiting for the old process to end, since its replacement may start first.
        await running.until_started(0)
        await gone(pid)
        [again] = await running.until_started(1)
        next_driver = running.fleet.driver_pid

    assert again == name
    assert next_driver not in (None, driver)
    assert "the Ray driver ended" in running.told.failures[0][1]


async def test_what_ray_cannot_reserve_is_said_with_the_next_step(node: RayNode, tmp_path: Path) -> None:
    async with a_fleet(node, tmp_path, resources={"GPU": 1.0}) as running:
        await until(lambda: bool(running.told.failures))

    [(_, problem), *_] = running.told.failures
    assert problem.startswith("ended before it served; it is started again after 0.2 s; Ray: ")
    assert problem.endswith("; mend fleet.cpus, gpus or resources")


async def test_the_environment_of_an_engine_says_where_it_is(node: RayNode, tmp_path: Path) -> None:
    async with a_fleet(node, tmp_path) as running:
        [(name, url)] = (await running.until_started(1)).items()
        environment = environment_of(running.fleet.pids()[name])

    assert f"WHERE={url}" in environment


async def test_an_actor_that_is_killed_takes_its_engine_along_and_both_are_replaced(
    node: RayNode, tmp_path: Path
) -> None:
    async with a_fleet(node, tmp_path) as running:
        [(name, before)] = (await running.until_started(1)).items()
        pid = running.fleet.pids()[name]
        os.kill(parent_of(pid), signal.SIGKILL)
        await running.until_started(0)
        await gone(pid)
        [(again, after)] = (await running.until_started(1)).items()

    assert (again, after != before) == (name, True)
    [(_, problem)] = running.told.failures
    assert problem.startswith("ended with status -1; it is started again")
    assert "; Ray: " in problem


async def test_when_the_cluster_is_lost_nothing_stays_and_it_is_told_while_it_is_sought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So long a driver hopes for its cluster; a minute unless told otherwise.
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
            # Ray seeks it for minutes; who leaves meanwhile does not wait for that.
            await asyncio.sleep(1.0)
            began = asyncio.get_running_loop().time()
            await running.fleet.stop()
            took_s = asyncio.get_running_loop().time() - began

    assert running.told.failures[0][1].startswith("ended with status -1; it is started again")
    assert took_s < LEAVE_SECONDS_MAX


async def test_a_fleet_that_stops_leaves_neither_engine_nor_driver(node: RayNode, tmp_path: Path) -> None:
    async with a_fleet(node, tmp_path) as running:
        await running.until_started(1)
        pids, driver = list(running.fleet.pids().values()), running.fleet.driver_pid
        await running.fleet.stop()
        assert driver is not None
        for pid in (*pids, driver):
            await gone(pid)

    assert len(pids) == 1
    assert running.fleet.driver_pid is None
    assert node.process.exit_status is None, "the cluster is not ours to end"
