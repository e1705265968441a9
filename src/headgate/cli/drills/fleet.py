"""The fleet of a drill: one gateway, or all gateways of a cell, read through their admin listeners.

The addresses of the other members come from the cell's store. The operator's key is sent only to the address that the
operator has given, so that an entry in the store cannot redirect it.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from headgate.cli.checkup import live
from headgate.cli.drills.figures import CounterKey, CounterTotals, Totals, read_counters, read_gauges
from headgate.cli.input.admin_request import AdminRequestFailed, AdminTarget, post_to_admin
from headgate.cli.input.operator_key import operator_headers
from headgate.cli.output.status import GatewayNotFound
from headgate.engines.page import PageUnavailable, get_page

if TYPE_CHECKING:
    import aiohttp

_TIMEOUT_S: Final = 5.0
_PAGE_BYTES_MAX: Final = 64 * 1024 * 1024
_T = TypeVar("_T")


class DrillEndpoint(Struct, frozen=True):
    id: str
    pool: str
    state: str
    in_flight: int = 0
    in_flight_max: int = 0
    leaving: bool = False
    drained: bool = False
    engine: str = ""
    """Engine that the endpoint shares with other endpoints. Empty if it has its own."""
    served: int = 0
    """Attempts completed on this endpoint."""

    @property
    def serves(self) -> bool:
        return self.state == "ready" and not self.leaving and not self.drained


class ScalingLimits(Struct, frozen=True):
    desired: int
    endpoints_max: int
    cold_start_s: float


class CellMemberState(Struct, frozen=True):
    standing: str


class DrillCell(Struct, frozen=True):
    member: str
    mode: str
    leads: bool
    decides: bool = False
    epoch: int | None = None
    scheduler: str | None = None
    members: dict[str, CellMemberState] = {}
    admin_addresses: dict[str, str] = {}


class DrillStatus(Struct, frozen=True):
    """The part of /status that drills use."""

    uptime_s: float
    draining: bool = False
    queued: dict[str, int] = {}
    endpoints: tuple[DrillEndpoint, ...] = ()
    scaling: dict[str, ScalingLimits] = {}
    cell: DrillCell | None = None

    @property
    def decides(self) -> bool:
        return self.cell is None or self.cell.decides


@dataclass(frozen=True, slots=True)
class DrillSample:
    """State of the fleet at one moment."""

    at_s: float
    totals: Totals = field(default_factory=dict[CounterKey, float])
    gauges: Mapping[CounterKey, float] = field(default_factory=dict[CounterKey, float])
    statuses: Mapping[str, DrillStatus] = field(default_factory=dict[str, DrillStatus])
    """Status of each gateway that responded, by its URL."""
    incidents: Mapping[str, str] = field(default_factory=dict[str, str])
    """Sentence of each unhealthy verdict, by its incident."""
    unreachable: tuple[str, ...] = ()
    """Gateways that did not respond, each with the reason."""
    restarted: tuple[str, ...] = ()
    """Gateways that have restarted since the first sample."""

    @property
    def status(self) -> DrillStatus | None:
        """Status of the gateway that makes the scheduling decisions; None if no gateway that responds does."""
        return next((each for each in self.statuses.values() if each.decides), None)

    @property
    def endpoints(self) -> tuple[DrillEndpoint, ...]:
        return () if self.status is None else self.status.endpoints

    @property
    def queued(self) -> int:
        return 0 if self.status is None else sum(self.status.queued.values())


class DrillFleet(Protocol):
    """Access to the fleet, and the clock of the drill."""

    def now_s(self) -> float: ...

    async def wait(self, seconds: float, stop: asyncio.Event) -> None:
        """Waits for this time, or until `stop` is set."""
        ...

    async def sample(self) -> DrillSample: ...

    async def statuses(self) -> Mapping[str, DrillStatus]:
        """Reads only the status of each gateway. Gateways that do not respond are missing."""
        ...

    async def post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Calls the admin API of the given gateway. Raises `AdminRequestFailed`."""
        ...


class LiveFleet:
    def __init__(self, session: "aiohttp.ClientSession", target: AdminTarget) -> None:
        self._session = session
        self._target = target
        self._totals = CounterTotals()
        self._uptimes: dict[str, float] = {}
        self.urls: list[str] = [target.url]
        """The gateways' admin listeners, the given one first."""

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def wait(self, seconds: float, stop: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await stop.wait()
        except TimeoutError:
            pass

    async def find_members(self) -> None:
        """Adds the other gateways of the cell, if the gateway belongs to one. Raises `GatewayNotFound`."""
        status = await self._status(self._target.url)
        if status.cell is None:
            return
        scheme = urlsplit(self._target.url).scheme
        for name, address in status.cell.admin_addresses.items():
            if name != status.cell.member:
                self.urls.append(address if "://" in address else f"{scheme}://{address}")

    async def sample(self) -> DrillSample:
        read = await asyncio.gather(*map(self._read, self.urls), return_exceptions=True)
        statuses: dict[str, DrillStatus] = {}
        gauges: dict[CounterKey, float] = {}
        incidents: dict[str, str] = {}
        unreachable: list[str] = []
        for url, found in zip(self.urls, read, strict=True):
            match found:
                case GatewayNotFound():
                    unreachable.append(str(found))
                case BaseException():
                    raise found
                case (status, metrics, verdicts):
                    self._note_restart(url, status)
                    self._totals.add(url, read_counters(metrics))
                    statuses[url] = status
                    gauges.update(read_gauges(metrics))
                    incidents |= {each.incident: each.sentence for each in verdicts if each.cause != live.HEALTHY}
        return DrillSample(
            self.now_s(),
            self._totals.snapshot(),
            gauges,
            statuses,
            incidents,
            tuple(unreachable),
            tuple(sorted(self._totals.restarted)),
        )

    async def statuses(self) -> Mapping[str, DrillStatus]:
        read = await asyncio.gather(*map(self._status, self.urls), return_exceptions=True)
        return {url: each for url, each in zip(self.urls, read, strict=True) if isinstance(each, DrillStatus)}

    async def post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        return await post_to_admin(self._target, path, body)

    def _note_restart(self, url: str, status: DrillStatus) -> None:
        if status.uptime_s < self._uptimes.get(url, 0.0):
            self._totals.restarted.add(url)
        self._uptimes[url] = status.uptime_s

    async def _read(self, url: str) -> tuple[DrillStatus, bytes, tuple[live.ReportedVerdict, ...]]:
        status, metrics, page = await asyncio.gather(
            self._status(url), self._page(url, "/metrics"), self._decoded(url, live.PATH, live.VerdictPage)
        )
        return status, metrics, page.verdicts

    async def _status(self, url: str) -> DrillStatus:
        return await self._decoded(url, "/status", DrillStatus)

    async def _decoded(self, url: str, path: str, kind: type[_T]) -> _T:
        try:
            return msgspec.json.decode(await self._page(url, path), type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise GatewayNotFound(f"the server at {url} is not the admin listener of a gateway: {error}") from error

    async def _page(self, url: str, path: str) -> bytes:
        headers: Mapping[str, str] = operator_headers() if url == self._target.url else {}
        try:
            page = await get_page(
                self._session, url, path, headers=headers, timeout_s=_TIMEOUT_S, page_bytes_max=_PAGE_BYTES_MAX
            )
        except PageUnavailable as unheard:
            raise GatewayNotFound(f"no gateway is responding at {url}: {unheard}") from unheard
        if page.status != 200:
            hint = "" if headers else "; the operator key is sent only to the gateway given by --url"
            raise GatewayNotFound(f"the gateway at {url} rejected {path} with status {page.status}{hint}")
        return page.body


async def active_overrides(fleet: DrillFleet) -> list[dict[str, Any]]:
    """Returns the overrides in force. Raises `AdminRequestFailed`."""
    answer = await fleet.post("overrides/list", {"limit": 1_000})
    data = answer.get("data")
    if not isinstance(data, list):
        raise AdminRequestFailed("the gateway's list of overrides is invalid; check that it runs the same version")
    return data  # pyright: ignore[reportUnknownVariableType]
