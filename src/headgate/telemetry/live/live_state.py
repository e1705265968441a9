"""Live state of this gateway for the console.

A snapshot of all counters is taken every second. While a console is connected, the snapshot is converted to the JSON
that console/src/state.ts describes. One data point per class is kept every five seconds for 15 minutes, so that a
console that connects later can show recent history.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import nlargest
from typing import Final

import msgspec

from headgate.core.summary import EndpointSummary, Summary
from headgate.model.endpoint import EndpointState
from headgate.model.units import MILLISECOND, SECOND, ClassName, Instant, PoolName
from headgate.model.verdict import Verdict
from headgate.ports.engine import Capabilities
from headgate.telemetry.live.live_requests import LiveRequests, StageBudgets
from headgate.telemetry.live.rate_window import UNSUCCESSFUL, ClassRates, RateWindow
from headgate.telemetry.meters import NO_CLASS, OTHER, Meters
from headgate.telemetry.scaling_metrics import PoolScaling
from headgate.telemetry.tenant_activity import TenantActivity
from headgate.telemetry.verdict_metrics import verdict_row

POINT_INTERVAL_S: Final = 5
"""Seconds between two data points."""
POINTS_MAX: Final = 180
CLASSES_MAX: Final = 20
TENANTS_SHOWN_MAX: Final = 20
ENDPOINTS_SHOWN_MAX: Final = 200
VERDICTS_SHOWN_MAX: Final = 20
_INTERVAL_S: Final = 1.0
_PPM_PER_PERCENT: Final = 10_000


@dataclass(frozen=True, slots=True)
class CellInfo:
    mode: str
    is_leader: bool
    scheduler: tuple[str, str] | None = None
    """Name of the scheduler and URL of its console."""


@dataclass(frozen=True, slots=True)
class GatewayInfo:
    name: str
    version: str
    uptime_s: float
    config_hash: str
    draining: bool
    cell: CellInfo | None = None


@dataclass(frozen=True, slots=True)
class LiveSources:
    """Functions that return current data without blocking."""

    now: Callable[[], Instant]
    gateway: Callable[[], GatewayInfo]
    summary: Callable[[], Summary]
    engines: Callable[[], Sequence[Capabilities]]
    scaling: Callable[[], Sequence[PoolScaling]]
    verdicts: Callable[[], Sequence[Verdict]]
    has_prices: Callable[[], bool]
    """Whether any pool has a price."""


class LiveState:
    """Current state and recent history."""

    def __init__(self, meters: Meters, sources: LiveSources, budgets: StageBudgets) -> None:
        self._tenant_activity = meters.activities
        self._meters = meters
        self._sources = sources
        self._window = RateWindow()
        self.requests = LiveRequests(budgets)
        """Consumer of request records."""
        self._points: deque[list[dict[str, object]]] = deque(maxlen=POINTS_MAX)
        self._seconds = 0
        self._summary = sources.summary()
        self.tick()

    def change_budgets(self, budgets: StageBudgets) -> None:
        self.requests.budgets = budgets

    async def run(
        self, watchers: Callable[[], int], publish: Callable[[bytes], None], *, every_s: float = _INTERVAL_S
    ) -> None:
        """Updates the state every second until cancelled, and sends it with `publish` while `watchers()` is above 0."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            # After a delay, skip seconds instead of sending the same state several times.
            due = max(due + every_s, loop.time())
            await asyncio.sleep(due - loop.time())
            self.tick()
            if watchers():
                publish(self.state_event())

    def tick(self) -> None:
        """Takes the snapshot for this second."""
        self._summary = self._sources.summary()
        spent = ((each.name, each.arrived, self._nano_usd(each.name)) for each in self._tenant_activity)
        self._window.add_sample(self._sources.now(), self._meters.classes, spent)
        self.requests.classify_waiting()
        if self._seconds % POINT_INTERVAL_S == 0:
            self._points.append(self._latency_points())
        self._seconds += 1

    def initial_events(self) -> bytes:
        """Events for a console that has just connected, containing the history and the state."""
        points = [point for points in self._points for point in points]
        return _event("history", {"version": 1, "points": points}) + self.state_event()

    def state_event(self) -> bytes:
        return _event("state", self.state())

    def state(self) -> dict[str, object]:
        """State as of the latest snapshot."""
        now, summary = self._sources.now(), self._summary
        return {
            "version": 1,
            "at": datetime.fromtimestamp(now / SECOND, UTC).isoformat(timespec="seconds"),
            "gateway": _gateway(self._sources.gateway()),
            "verdicts": [verdict_row(each, now) for each in self._sources.verdicts()[:VERDICTS_SHOWN_MAX]],
            "classes": [self._class(name) for name in self._classes()],
            "tenants": self._tenants(),
            "pools": self._pools(summary),
            "endpoints": self._endpoints(summary),
            "endpoints_known": len(summary.endpoints),
            "rejections": self._rejections(),
            "latency_points": self._latency_points(),
            "recent": self.requests.rows(),
            "degradation_level": max((each.level for each in summary.degradation), default=0),
        }

    def _classes(self) -> list[str]:
        named = [name for name in self._meters.classes if name not in (NO_CLASS, OTHER)]
        return named[:CLASSES_MAX]

    def _class(self, name: str) -> dict[str, object]:
        rates: ClassRates = self._window.of_class(name)
        target_ns = self._meters.classes[name].targets.ttft_ns
        return {
            "class": name,
            "queued": self._summary.queued.get(ClassName(name), 0),
            "arrived_per_s": rates.arrived_per_s,
            "completed_per_s": rates.completed_per_s,
            "rejected_per_s": rates.rejected_per_s,
            "ttft_ms": rates.ttft_ms,
            "duration_ms": rates.duration_ms,
            "ttft_target_ms": None if target_ns is None else target_ns / MILLISECOND,
            "goodput_percent": rates.on_time_percent,
        }

    def _latency_points(self) -> list[dict[str, object]]:
        at = self._sources.now() // SECOND
        return [self._latency_point(name, at) for name in self._classes()]

    def _latency_point(self, name: str, at: int) -> dict[str, object]:
        rates = self._window.of_class(name)
        firsts = rates.ttft_ms or {}
        return {
            "t": at,
            "class": name,
            "ttft_p50_ms": firsts.get("p50"),
            "ttft_p99_ms": firsts.get("p99"),
            "queued": self._summary.queued.get(ClassName(name), 0),
            "arrived_per_s": rates.arrived_per_s,
        }

    def _nano_usd(self, tenant: str) -> int:
        """The tenant's cost; 0 if the tenant does not have its own metrics."""
        meter = self._meters.tenants.get(tenant)
        return 0 if meter is None else meter.nano_usd

    def _tenants(self) -> list[dict[str, object]]:
        rates = {each.name: self._window.of_tenant(each.name) for each in self._tenant_activity}

        def weight(tenant: TenantActivity) -> tuple[int, float]:
            return tenant.queued + tenant.in_flight, sum(rates[tenant.name])

        busy = [each for each in self._tenant_activity if any(weight(each))]
        has_prices = self._sources.has_prices()
        return [
            {
                "tenant": each.name,
                "queued": each.queued,
                "in_flight": each.in_flight,
                "arrived_per_s": rates[each.name][0],
                "usd_per_hour": rates[each.name][1] if has_prices and each.name in self._meters.tenants else None,
            }
            for each in nlargest(TENANTS_SHOWN_MAX, busy, key=weight)
        ]

    def _pools(self, summary: Summary) -> list[dict[str, object]]:
        given_up = {each.pool: each for each in summary.degradation}
        scaling = {each.pool: each for each in self._sources.scaling()}
        shown: list[dict[str, object]] = []
        for name in (PoolName(each) for each in self._meters.pools if each != OTHER):
            given, scaled = given_up.get(name), scaling.get(name)
            of_pool = [each for each in summary.endpoints if each.pool == name and not each.leaving]
            shown.append(
                {
                    "pool": name,
                    "level": given.level if given else 0,
                    "shed_percent": given.shed_ppm / _PPM_PER_PERCENT if given else 0.0,
                    "demand_to_capacity_ratio": None if scaled is None else _demand_to_capacity_ratio(scaled),
                    "ready": sum(each.state is EndpointState.READY and not each.probe_fails for each in of_pool),
                    "warming": sum(each.state is EndpointState.WARMING for each in of_pool),
                    "desired": None if scaled is None else scaled.endpoints_desired,
                }
            )
        return shown

    def _endpoints(self, summary: Summary) -> list[dict[str, object]]:
        """Endpoints, those with problems first. If there are too many, healthy ones are omitted."""
        told = {each.endpoint_id: each for each in self._sources.engines()}
        shown = sorted(summary.endpoints, key=_health_rank)[:ENDPOINTS_SHOWN_MAX]
        return [_endpoint(each, told.get(each.id)) for each in shown]

    def _rejections(self) -> list[dict[str, object]]:
        endings = sorted(self._window.unsuccessful_outcomes(), key=lambda each: (-each[1], -each[2]))
        return [
            {"outcome": outcome.value, "per_min": recent, "total": total, "unsuccessful": outcome in UNSUCCESSFUL}
            for outcome, recent, total in endings
        ]


def _gateway(gateway: GatewayInfo) -> dict[str, object]:
    cell = gateway.cell
    return {
        "name": gateway.name,
        "version": gateway.version,
        "uptime_s": round(gateway.uptime_s, 1),
        "config_hash": gateway.config_hash,
        "draining": gateway.draining,
        "cell": None if cell is None else _cell(cell),
    }


def _cell(cell: CellInfo) -> dict[str, object]:
    scheduler = None if cell.scheduler is None else dict(zip(("name", "admin"), cell.scheduler, strict=True))
    return {"mode": cell.mode, "is_leader": cell.is_leader, "scheduler": scheduler}


def _health_rank(endpoint: EndpointSummary) -> int:
    """Sort key: endpoints with problems first."""
    if endpoint.state is EndpointState.EJECTED:
        return 0
    if endpoint.suspected or (endpoint.probe_fails and endpoint.state is not EndpointState.WARMING):
        return 1
    if endpoint.leaving:
        return 2
    return 4 if endpoint.state is EndpointState.READY else 3


def _endpoint(endpoint: EndpointSummary, told: Capabilities | None) -> dict[str, object]:
    load = None if told is None else told.telemetry
    used = None if load is None else load.kv_used_fraction
    return {
        "id": endpoint.id,
        "pool": endpoint.pool,
        "state": endpoint.state.value,
        "in_flight": endpoint.in_flight,
        "in_flight_max": endpoint.in_flight_max,
        "kv_percent": None if used is None else round(100 * used, 1),
        "running": None if load is None else load.running,
        "waiting": None if load is None else load.waiting,
        "speed_percent": max(endpoint.decode_percent, endpoint.prefill_percent),
        "suspected": endpoint.suspected,
        "leaving": endpoint.leaving,
        "drained": endpoint.drained,
        "probe_fails": endpoint.probe_fails,
    }


def _demand_to_capacity_ratio(scaled: PoolScaling) -> float:
    return round(scaled.demand_ppm / _PPM_PER_PERCENT / 100 / max(1, scaled.endpoints_ready), 2)


def _event(name: str, data: Mapping[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))
