"""Response from /status on the admin listener.

Unknown fields are ignored, so that the command works with newer gateways.
"""

from typing import TYPE_CHECKING

from msgspec import DecodeError, Struct, json

from headgate.cli.input.operator_key import ADMIN_KEY_VARIABLE, operator_headers
from headgate.cli.output.cell_status import CellState
from headgate.config.quantities import address_text
from headgate.engines.page import PAGE_BYTES_MAX, Page, PageUnavailable, get_page

if TYPE_CHECKING:
    import aiohttp

PATH = "/status"

_WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (addresses to connect to, not to listen on)


class Load(Struct, frozen=True):
    """Load according to the engine's latest metrics."""

    running: int | None = None
    waiting: int | None = None
    kv_used_fraction: float | None = None


class EngineStatus(Struct, frozen=True):
    endpoint_id: str
    dialect: str
    version: str | None = None
    problems: tuple[str, ...] = ()
    telemetry: Load = Load()
    telemetry_age_s: float | None = None


class EndpointStatus(Struct, frozen=True):
    id: str
    state: str
    leaving: bool
    in_flight: int
    in_flight_max: int
    suspected: bool = False
    quota_exhausted: bool = False
    engine: str = ""
    sequences_max: int | None = None


class DriftState(Struct, frozen=True):
    pool: str
    decode_percent: int
    prefill_percent: int


class OverrideState(Struct, frozen=True):
    verb: str
    target: str
    remaining_s: int


class DatabaseState(Struct, frozen=True):
    tenants: int = 0
    keys: int = 0
    overrides: int = 0
    problem: str | None = None
    shadowed_by_file: tuple[str, ...] = ()


class LedgerState(Struct, frozen=True):
    rows_written: int = 0
    rows_waiting: int = 0
    rows_lost: int = 0
    rows_rejected: int = 0
    attempts_unrecorded: int = 0
    oldest_s: float = 0.0
    problem: str | None = None
    spool_problem: str | None = None


class IssuerState(Struct, frozen=True):
    issuer: str
    keys: int = 0
    age_s: float | None = None
    problem: str | None = None


class ListenerTlsState(Struct, frozen=True):
    certificate: str
    expires_at: str
    expires_in_s: int
    problem: str | None = None


class StatusPage(Struct, frozen=True):
    version: str
    config_hash: str
    uptime_s: float
    draining: bool
    requests_open: int
    attempts_open: int
    queued: dict[str, int]
    endpoints: tuple[EndpointStatus, ...]
    engines: tuple[EngineStatus, ...] = ()
    build: str = ""
    config_since: str = ""
    reload: str = "signal"
    reload_problems: tuple[str, ...] = ()
    restart_needed: tuple[str, ...] = ()
    engine_tls_problems: tuple[str, ...] = ()
    held_for_start: dict[str, int] = {}
    speed_drift: tuple[DriftState, ...] = ()
    overrides: tuple[OverrideState, ...] = ()
    cell: CellState | None = None
    database: DatabaseState | None = None
    ledger: LedgerState | None = None
    issuers: dict[str, IssuerState] = {}
    """Token issuers, by name."""
    tls: dict[str, ListenerTlsState] = {}
    """TLS of each listener that has one, by the name of its setting."""


def base_url(host: str, port: int, *, https: bool = False) -> str:
    """URL of the server that listens on this address."""
    return f"{'https' if https else 'http'}://{address_text(_WILDCARD_HOSTS.get(host, host), port)}"


class GatewayNotFound(Exception):
    """No server responds at the address, or the server is not an admin listener. The message gives the reason."""


async def get_admin_page(
    session: "aiohttp.ClientSession", url: str, path: str, *, timeout_s: float, page_bytes_max: int = PAGE_BYTES_MAX
) -> Page:
    """A page of an admin listener, read with the operator's key. Raises `GatewayNotFound`."""
    try:
        page = await get_page(
            session, url, path, headers=operator_headers(), timeout_s=timeout_s, page_bytes_max=page_bytes_max
        )
    except PageUnavailable as unheard:
        raise GatewayNotFound(f"no gateway is responding at {url}: {unheard}") from unheard
    if page.status in (401, 403):
        hint = f"set {ADMIN_KEY_VARIABLE} to an operator key or token with the permission read"
        raise GatewayNotFound(f"the gateway at {url} rejected the request with status {page.status}: {hint}")
    return page


async def fetch_status(session: "aiohttp.ClientSession", url: str, *, timeout_s: float) -> tuple[StatusPage, bytes]:
    """The status, and the response that it was read from. Raises `GatewayNotFound`."""
    page = await get_admin_page(session, url, PATH, timeout_s=timeout_s)
    try:
        return json.decode(page.body, type=StatusPage), page.body
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise GatewayNotFound(f"the server at {url} is not the admin listener of a gateway") from error
