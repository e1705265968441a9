"""Builders for process fleets, with a minimal scheduler and a recording observer."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headgate.core.summary import EndpointSummary
from headgate.fleets.processes.fleet import ProcessFleet
from headgate.fleets.processes.options import ProcessOptions
from headgate.fleets.processes.spec import ProcessSpec
from headgate.model.endpoint import EndpointState
from headgate.model.units import MILLISECOND, Duration, EndpointId, PoolName
from headgate.ports.engine import ProbeState
from headgate.ports.fleet import Fleet, Phase, ProbeResult
from testing.ports import free_ports

STUB = (sys.executable, "-S", str(Path(__file__).parent / "stub_engine.py"), "{port}")


@cache
def fleet_ports() -> tuple[int, int]:
    """First and last port for this process's fleets. No other test run gets any of them."""
    ports = free_ports(64)
    return ports[0], ports[-1]


@dataclass
class Notes:
    """Fleet observer that records its calls."""

    starts: list[tuple[EndpointId, Mapping[Phase, Duration]]] = field(default_factory=list)
    drains: list[tuple[EndpointId, Duration]] = field(default_factory=list)
    troubles: list[tuple[str, str]] = field(default_factory=list)
    recoveries: list[str] = field(default_factory=list)

    def started(self, endpoint_id: EndpointId, took_ns: Mapping[Phase, Duration]) -> None:
        self.starts.append((endpoint_id, took_ns))

    def drained(self, endpoint_id: EndpointId, took_ns: Duration) -> None:
        self.drains.append((endpoint_id, took_ns))

    def problem_found(self, subject: str, problem: str) -> None:
        self.troubles.append((subject, problem))

    def problem_cleared(self, what: str) -> None:
        self.recoveries.append(what)


@dataclass
class Follower:
    """Minimal scheduler that tracks a fleet's endpoints and keeps leaving ones while they have requests in flight."""

    fleet: Fleet | None = None
    known: dict[EndpointId, EndpointState] = field(default_factory=dict)
    leaving: set[EndpointId] = field(default_factory=set)
    in_flight: dict[EndpointId, int] = field(default_factory=dict)
    seen_leaving: set[EndpointId] = field(default_factory=set)
    """Endpoints that the fleet has looked up while they were leaving."""

    def follow(self) -> None:
        assert self.fleet is not None
        named = {each.id: each.started for each in self.fleet.endpoints()}
        for endpoint_id, started in named.items():
            self.known[endpoint_id] = EndpointState.READY if started else EndpointState.WARMING
        self.leaving = {each for each in self.known if each not in named}
        self._forget()

    def end_all(self) -> None:
        self.in_flight.clear()
        self._forget()

    def lookup(self, endpoint_id: EndpointId) -> EndpointSummary | None:
        if endpoint_id not in self.known:
            return None
        leaving, in_flight = endpoint_id in self.leaving, self.in_flight.get(endpoint_id, 0)
        if leaving:
            self.seen_leaving.add(endpoint_id)
        return EndpointSummary(endpoint_id, PoolName("p"), self.known[endpoint_id], leaving, in_flight, 4)

    def ready(self) -> list[EndpointId]:
        ready = (each for each, state in self.known.items() if state is EndpointState.READY)
        return sorted(each for each in ready if each not in self.leaving)

    def _forget(self) -> None:
        for each in [each for each in self.leaving if not self.in_flight.get(each)]:
            self.leaving.discard(each)
            del self.known[each]


async def look(url: str) -> ProbeResult:
    """Probe an engine through the status of its health page."""
    host, port = urlsplit(url).netloc.split(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return ProbeResult(ProbeState.UNREACHABLE, "nothing listens there")
    try:
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        head = await reader.readline()
    finally:
        writer.close()
    return ProbeResult(ProbeState.READY) if b" 200 " in head else ProbeResult(ProbeState.LOADING, "it is loading")


async def warm_up(url: str) -> str | None:
    return None


@dataclass
class Running:
    fleet: ProcessFleet
    scheduler: Follower
    notes: Notes

    async def until(self, reached: Callable[[], Any], *, seconds_max: float = 60.0) -> None:
        async with asyncio.timeout(seconds_max):
            while not reached():
                await asyncio.sleep(0.02)

    async def until_ready(self, count: int) -> None:
        await self.until(lambda: len(self.scheduler.ready()) == count)

    async def until_started(self, count: int) -> None:
        await self.until(lambda: len(self.notes.starts) == count)


def terms(place: Path, *arguments: str, **settings: Any) -> ProcessSpec:
    usual = {
        "in_flight_max": 4,
        "command": (*STUB, *arguments),
        "port_range": fleet_ports(),
        "restart_backoff_ns": Duration(50 * MILLISECOND),
        "restart_backoff_ns_max": Duration(400 * MILLISECOND),
    }
    options = ProcessOptions(**(usual | settings))
    return ProcessSpec(pool=PoolName("p"), model="m", log_directory=place / "logs", options=options)


@asynccontextmanager
async def a_fleet(
    made: ProcessSpec, *, endpoints: int = 1, least: int = 0, most: int = 3, warm: Any = warm_up
) -> AsyncIterator[Running]:
    follower, notes = Follower(), Notes()
    fleet = ProcessFleet(
        made,
        endpoints=endpoints,
        endpoints_min=least,
        endpoints_max=most,
        look=look,
        warm_up=warm,
        lookup=follower.lookup,
        observer=notes,
        other_ports=tuple,
    )
    follower.fleet = fleet
    await fleet.start(follower.follow)
    try:
        yield Running(fleet, follower, notes)
    finally:
        await fleet.stop()


def is_alive(pid: int) -> bool:
    """Return whether the process is running. A zombie does not count."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


async def until_dead(pid: int, *, seconds_max: float = 60.0) -> None:
    async with asyncio.timeout(seconds_max):
        while is_alive(pid):
            await asyncio.sleep(0.02)
