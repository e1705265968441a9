"""What is this gateway doing at this moment, for whoever watches its page?

Once a second a picture of everything that is counted is taken; as long as anybody watches, a state is made of it, the
JSON that console/src/state.ts describes. A point of every class is kept each five seconds for a quarter of an hour, so
that whoever comes late sees how it came to this.
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
from headgate.ports.records import RequestRecord
from headgate.telemetry.live.requests import LiveRequests, StageBudgets
from headgate.telemetry.live.window import UNSERVED, ClassRates, Window
from headgate.telemetry.meters import NO_CLASS, OTHER, Meters
from headgate.telemetry.scaling import PoolScaling
from headgate.telemetry.tenants_now import TenantNow, TenantsNow
from headgate.telemetry.verdicts import verdict_row

POINT_EVERY: Final = 5
"""So many seconds lie between two points that are kept."""
POINTS_MAX: Final = 180
CLASSES_MAX: Final = 20
TENANTS_SHOWN_MAX: Final = 20
ENDPOINTS_SHOWN_MAX: Final = 200
VERDICTS_SHOWN_MAX: Final = 20
_EVERY_S: Final = 1.0
_PPM_PER_PERCENT: Final = 10_000


@dataclass(frozen=True, slots=True)
class CellNow:
    mode: str
    leads: bool
    scheduler: tuple[str, str] | None = None
    """Its name, and where its own page is."""


@dataclass(frozen=True, slots=True)
class GatewayNow:
    name: str
    version: str
    uptime_s: float
    config_hash: str
    draining: bool
    cell: CellNow | None = None


@dataclass(frozen=True, slots=True)
class LiveSources:
    """Who is asked, and answers at once."""

    now: Callable[[], Instant]
    gateway: Callable[[], GatewayNow]
    summary: Callable[[], Summary]
    engines: Callable[[], Sequence[Capabilities]]
    scaling: Callable[[], Sequence[PoolScaling]]
    verdicts: Callable[[], Sequence[Verdict]]
    has_prices: Callable[[], bool]
    """Whether anything that is served has a price."""


class LiveState:
    """Also a keeper of records."""

    def __init__(self, meters: Meters, tenants: TenantsNow, sources: LiveSources, budgets: StageBudgets) -> None:
        self._tenants_now = tenants
        self._meters = meters
        self._sources = sources
        self._window = Window()
        self._requests = LiveRequests(budgets)
        self._points: deque[list[dict[str, object]]] = deque(maxlen=POINTS_MAX)
        self._seconds = 0
        self._summary = sources.summary()
        self.second()

    def take(self, record: RequestRecord) -> None:
        self._requests.take(record)

    def change_budgets(self, budgets: StageBudgets) -> None:
        self._requests.budgets = budgets

    async def run(
        self, watched: Callable[[], int], tell: Callable[[bytes], None], *, every_s: float = _EVERY_S
    ) -> None:
        """For ever. What is told are events, as a stream of them carries them."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            # A loop that was held up leaves seconds out, rather than telling the same thing several times.
            due = max(due + every_s, loop.time())
            await asyncio.sleep(due - loop.time())
            self.second()
            if watched():
                tell(self.state_event())

    def second(self) -> None:
        """Takes the picture of this second."""
        self._summary = self._sources.summary()
        spent = ((each.name, each.asked, self._nano_usd(each.name)) for each in self._tenants_now)
        self._window.take(self._sources.now(), self._meters.classes, spent)
        self._requests.look()
        if self._seconds % POINT_EVERY == 0:
            self._points.append(self._tails())
        self._seconds += 1

    def first_events(self) -> bytes:
        """What somebody is told who begins to watch."""
        points = [point for points in self._points for point in points]
        return _event("history", {"version": 1, "points": points}) + self.state_event()

    def state_event(self) -> bytes:
        return _event("state", self.state())

    def state(self) -> dict[str, object]:
        """As of the last second."""
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
            "refusals": self._refusals(),
            "tails": self._tails(),
            "recent": self._requests.shown(),
            "ladder": max((each.level for each in summary.given_up), default=0),
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
            "per_s": rates.per_s,
            "completed_per_s": rates.completed_per_s,
            "refused_per_s": rates.refused_per_s,
            "ttft_ms": rates.ttft_ms,
            "duration_ms": rates.duration_ms,
            "ttft_target_ms": None if target_ns is None else target_ns / MILLISECOND,
            "goodput_percent": rates.in_time_percent,
        }

    def _tails(self) -> list[dict[str, object]]:
        at = self._sources.now() // SECOND
        return [self._tail(name, at) for name in self._classes()]

    def _tail(self, name: str, at: int) -> dict[str, object]:
        rates = self._window.of_class(name)
        firsts = rates.ttft_ms or {}
        return {
            "t": at,
            "class": name,
            "ttft_p50_ms": firsts.get("p50"),
            "ttft_p99_ms": firsts.get("p99"),
            "queued": self._summary.queued.get(ClassName(name), 0),
            "per_s": rates.per_s,
        }

    def _nano_usd(self, tenant: str) -> int:
        """What it has spent; nothing where it is not told apart there."""
        meter = self._meters.tenants.get(tenant)
        return 0 if meter is None else meter.nano_usd

    def _tenants(self) -> list[dict[str, object]]:
        rates = {each.name: self._window.of_tenant(each.name) for each in self._tenants_now}

        def weight(tenant: TenantNow) -> tuple[int, float]:
            return tenant.queued + tenant.in_flight, sum(rates[tenant.name])

        busy = [each for each in self._tenants_now if any(weight(each))]
        has_prices = self._sources.has_prices()
        return [
            {
                "tenant": each.name,
                "queued": each.queued,
                "in_flight": each.in_flight,
                "per_s": rates[each.name][0],
                "usd_per_hour": rates[each.name][1] if has_prices and each.name in self._meters.tenants else None,
            }
            for each in nlargest(TENANTS_SHOWN_MAX, busy, key=weight)
        ]

    def _pools(self, summary: Summary) -> list[dict[str, object]]:
        given_up = {each.pool: each for each in summary.given_up}
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
                    "demand_over_capacity": None if scaled is None else _over_capacity(scaled),
                    "ready": sum(each.state is EndpointState.READY and not each.probe_fails for each in of_pool),
                    "warming": sum(each.state is EndpointState.WARMING for each in of_pool),
                    "wanted": None if scaled is None else scaled.endpoints_wanted,
                }
            )
        return shown

    def _endpoints(self, summary: Summary) -> list[dict[str, object]]:
        """The worst first, so that what is left out of a large fleet is what serves."""
        told = {each.endpoint_id: each for each in self._sources.engines()}
        shown = sorted(summary.endpoints, key=_soundness)[:ENDPOINTS_SHOWN_MAX]
        return [_endpoint(each, told.get(each.id)) for each in shown]

    def _refusals(self) -> list[dict[str, object]]:
        endings = sorted(self._window.endings(), key=lambda each: (-each[1], -each[2]))
        return [
            {"outcome": outcome.value, "per_min": recent, "total": total, "unserved": outcome in UNSERVED}
            for outcome, recent, total in endings
        ]


def _gateway(gateway: GatewayNow) -> dict[str, object]:
    cell = gateway.cell
    return {
        "name": gateway.name,
        "version": gateway.version,
        "uptime_s": round(gateway.uptime_s, 1),
        "config_hash": gateway.config_hash,
        "draining": gateway.draining,
        "cell": None if cell is None else _cell(cell),
    }


def _cell(cell: CellNow) -> dict[str, object]:
    scheduler = None if cell.scheduler is None else dict(zip(("name", "admin"), cell.scheduler, strict=True))
    return {"mode": cell.mode, "leads": cell.leads, "scheduler": scheduler}


def _soundness(endpoint: EndpointSummary) -> int:
    """The lower, the more it deserves a look."""
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


def _over_capacity(scaled: PoolScaling) -> float:
    return round(scaled.demand_ppm / _PPM_PER_PERCENT / 100 / max(1, scaled.endpoints_ready), 2)


def _event(name: str, data: Mapping[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))
