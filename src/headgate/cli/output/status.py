"""What does a running gateway say of itself?

What its admin listener's /status shows, as far as people are told of it. Fields that this version does not know are
left alone, so that a gateway may be newer than whoever asks.
"""

from typing import TYPE_CHECKING

from msgspec import DecodeError, Struct, json

from headgate.cli.output.cell_status import CellState
from headgate.config.quantities import address_text
from headgate.engines.page import Unheard, get_page

if TYPE_CHECKING:
    import aiohttp

PATH = "/status"

_EVERY_NETWORK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (what to ask where it listens everywhere)


class Load(Struct, frozen=True):
    """What the engine's metrics last said."""

    running: int | None = None
    waiting: int | None = None
    kv_used_fraction: float | None = None


class EngineFound(Struct, frozen=True):
    endpoint_id: str
    dialect: str
    version: str | None = None
    problems: tuple[str, ...] = ()
    telemetry: Load = Load()
    telemetry_age_s: float | None = None


class EndpointState(Struct, frozen=True):
    id: str
    state: str
    leaving: bool
    in_flight: int
    in_flight_max: int
    suspected: bool = False
    sequences_max: int | None = None


class OrderState(Struct, frozen=True):
    verb: str
    target: str
    left_s: int


class DatabaseState(Struct, frozen=True):
    tenants: int = 0
    keys: int = 0
    orders: int = 0
    problem: str | None = None
    shadowed_by_file: tuple[str, ...] = ()


class LedgerState(Struct, frozen=True):
    rows_written: int = 0
    rows_waiting: int = 0
    rows_lost: int = 0
    rows_refused: int = 0
    attempts_unrecorded: int = 0
    oldest_s: float = 0.0
    problem: str | None = None
    spool_problem: str | None = None


class GatewayStatus(Struct, frozen=True):
    version: str
    config_hash: str
    uptime_s: float
    draining: bool
    requests_open: int
    attempts_open: int
    queued: dict[str, int]
    endpoints: tuple[EndpointState, ...]
    engines: tuple[EngineFound, ...] = ()
    reload_problems: tuple[str, ...] = ()
    held_for_start: dict[str, int] = {}
    orders: tuple[OrderState, ...] = ()
    cell: CellState | None = None
    database: DatabaseState | None = None
    ledger: LedgerState | None = None


def url_of(host: str, port: int) -> str:
    """Where to ask whoever listens on this address."""
    return f"http://{address_text(_EVERY_NETWORK.get(host, host), port)}"


class NotAGateway(Exception):
    """Nothing answers there, or not as a gateway's admin listener does. The message says which."""


async def ask(session: "aiohttp.ClientSession", url: str, *, timeout_s: float) -> tuple[GatewayStatus, bytes]:
    """The status, and the page that it was read from. Raises `NotAGateway`."""
    try:
        page = await get_page(session, url, PATH, headers={}, timeout_s=timeout_s)
    except Unheard as unheard:
        raise NotAGateway(f"no gateway answers at {url}: {unheard}") from unheard
    try:
        return json.decode(page.body, type=GatewayStatus), page.body
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise NotAGateway(f"what answers at {url} is not the admin listener of a gateway") from error
