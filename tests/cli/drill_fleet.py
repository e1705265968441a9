"""A fleet for drills, with a virtual clock: gateways that count requests, and an admin API that keeps overrides."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.cli.drills.figures import GOOD, JUDGED, LOAD, REQUESTS, TARGETS, TENANT_REQUESTS, TOKENS, CounterKey
from headgate.cli.drills.fleet import CellMemberState, DrillCell, DrillEndpoint, DrillSample, DrillStatus, ScalingLimits
from headgate.cli.input.admin_request import AdminRequestFailed, AdminResponseLost

URL = "http://gateway"
RATE = 10


def an_endpoint(name: str, **more: Any) -> DrillEndpoint:
    return DrillEndpoint(name, "p", "ready", **more)


@dataclass
class FakeFleet:
    """Serves `RATE` requests per second of class `chat`, of which `good(fleet)` percent meet the objectives."""

    endpoints: tuple[DrillEndpoint, ...] = (an_endpoint("e1"), an_endpoint("e2"))
    good: Callable[["FakeFleet"], int] = lambda _: 100
    lost: Callable[["FakeFleet"], int] = lambda _: 0
    rate: int = RATE
    objectives: Mapping[str, float] = field(default_factory=lambda: {"ttft": 0.95})
    incidents: Callable[["FakeFleet"], dict[str, str]] = lambda _: {}
    scaling: dict[str, ScalingLimits] = field(default_factory=dict[str, ScalingLimits])
    cold_start_s: float = 20
    cell: DrillCell | None = None
    takeover_s: float | None = 0.3
    seconds: float = 0.0
    overrides: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    calls: list[tuple[str, Mapping[str, object]]] = field(default_factory=list[tuple[str, Mapping[str, object]]])
    failure: Callable[["FakeFleet", str], str | None] = lambda _fleet, _path: None
    """Returns why a call of the admin API fails."""
    counts_drill: bool = True
    """Whether the gateway counts requests of a throttled tenant."""
    failure_kind: type[AdminRequestFailed] = AdminRequestFailed
    lose_response: bool = False
    """Whether the response to the creation of an override or to a hand-over is lost."""
    lost_after_s: float = 0
    """Time until the loss of the response to a hand-over is noticed."""
    down: Callable[["FakeFleet"], bool] = lambda _: False
    restarted: Callable[["FakeFleet"], bool] = lambda _: False
    tick: Callable[["FakeFleet"], None] = lambda _: None
    """Called after every wait."""
    handed_over_s: float | None = None
    _counts: dict[CounterKey, float] = field(default_factory=dict[CounterKey, float])

    # DrillFleet

    def now_s(self) -> float:
        return self.seconds

    async def wait(self, seconds: float, stop: asyncio.Event) -> None:
        await asyncio.sleep(0)
        if not stop.is_set():
            self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self._count(seconds)
        self.seconds += seconds
        self.overrides = [each for each in self.overrides if each["until_s"] > self.seconds]
        self.tick(self)

    async def sample(self) -> DrillSample:
        if self.down(self):
            return DrillSample(self.seconds, unreachable=("no gateway is responding",))
        gauges = {(TARGETS, "chat", name): target for name, target in self.objectives.items()}
        return DrillSample(
            self.seconds,
            dict(self._counts),
            {**gauges, (LOAD, "p", ""): 0.5},
            dict(await self.statuses()),
            self.incidents(self),
            restarted=(URL,) if self.restarted(self) else (),
        )

    async def statuses(self) -> Mapping[str, DrillStatus]:
        drained = {each["target"] for each in self.overrides if each["verb"] == "drain"}
        endpoints = tuple(_drained(each) if each.id in drained else each for each in (*self.endpoints, *self._added()))
        return {URL: DrillStatus(self.seconds, endpoints=endpoints, scaling=self.scaling, cell=self._cell())}

    async def post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        self.calls.append((path, body))
        if (why := self.failure(self, path)) is not None:
            await self._pass(self.lost_after_s)
            raise self.failure_kind(why)
        match path:
            case "overrides/list":
                return {"data": self.overrides}
            case "overrides/create":
                made = {**body, "override": f"ovr_{len(self.calls)}", "expires_at": "later"}
                self.overrides.append({**made, "until_s": self.seconds + float(str(body["duration_s"]))})
                if self.lose_response:
                    raise AdminRequestFailed("the gateway did not respond within 15 s")
                return made
            case "overrides/end":
                self.overrides = [each for each in self.overrides if each["override"] != body["override"]]
                return dict(body)
            case _:
                assert path == "cell/hand-over", path
                self.handed_over_s = self.seconds
                if self.lose_response:
                    await self._pass(self.lost_after_s)
                    raise AdminResponseLost("the gateway did not respond within 15 s")
                return {}

    # Behaviour

    async def _pass(self, seconds: float) -> None:
        """Waits until another task has let this time pass."""
        over_s = self.seconds + seconds
        while self.seconds < over_s:
            await asyncio.sleep(0)

    @property
    def acting(self) -> bool:
        return any(str(each["reason"]).startswith("drill: ") for each in self.overrides)

    def ended(self) -> list[object]:
        return [body["override"] for path, body in self.calls if path == "overrides/end"]

    def _count(self, seconds: float) -> None:
        asked = self.rate * seconds
        lost = asked * self.lost(self) / 100
        self._add((REQUESTS, "chat", "completed"), asked - lost)
        self._add((REQUESTS, "chat", "engine_error"), lost)
        self._add((TOKENS, "chat", "prompt"), 200 * asked)
        self._add((TOKENS, "chat", "output"), 50 * asked)
        self._add((TENANT_REQUESTS, "acme", "completed"), asked)
        for each in self.overrides:
            counted = seconds if self.counts_drill and each["verb"] == "throttle" else 0
            self._add((TENANT_REQUESTS, each["target"], "completed"), counted)
        for name in self.objectives:
            self._add((JUDGED, "chat", name), asked)
            self._add((GOOD, "chat", name), asked * self.good(self) / 100)

    def _add(self, key: CounterKey, value: float) -> None:
        self._counts[key] = self._counts.get(key, 0.0) + value

    def _added(self) -> list[DrillEndpoint]:
        """The endpoint that a raised minimum has added."""
        for each in self.overrides:
            if each["verb"] == "scale":
                age_s = self.seconds - (each["until_s"] - each["duration_s"])
                ready = age_s >= self.cold_start_s
                served = int(age_s >= self.cold_start_s + 1)
                return [DrillEndpoint("new", "p", "ready" if ready else "warming", served=served)]
        return []

    def _cell(self) -> DrillCell | None:
        if self.cell is None or self.handed_over_s is None:
            return self.cell
        taken = self.takeover_s is not None and self.seconds - self.handed_over_s >= self.takeover_s
        epoch = (self.cell.epoch or 0) + taken
        return DrillCell("g2", "following", leads=taken, decides=taken, epoch=epoch, members=self.cell.members)


def _drained(endpoint: DrillEndpoint) -> DrillEndpoint:
    return DrillEndpoint(endpoint.id, endpoint.pool, endpoint.state, drained=True)


def a_cell(*others: str) -> DrillCell:
    members = {name: CellMemberState("present") for name in ("g1", *others)}
    return DrillCell("g1", "following", leads=True, decides=True, epoch=3, members=members)
