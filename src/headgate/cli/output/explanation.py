"""What does a running gateway say of one request, or of many?

What its admin listener's /explain/REQUEST_ID and /requests show, as far as people are told of it. Fields that this
version does not know are left alone, so that a gateway may be newer than whoever asks.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from msgspec import DecodeError, Struct, field, json

from headgate.cli.output.status import NotAGateway
from headgate.engines.page import Page, Unheard, get_page

if TYPE_CHECKING:
    import aiohttp

PATH = "/explain/"
SEARCH_PATH = "/requests"
SEARCH_S_MAX = 15.0
"""It may look through millions of records, and others of its cell after that."""
_SEARCH_BYTES_MAX = 16 * 1024 * 1024


class Step(Struct, frozen=True):
    at_ms: float
    what: str
    why: str = ""


class StageSpan(Struct, frozen=True):
    stage: str
    at_ms: float
    took_ms: float
    attempt: int | None = None


class CallerStage(Struct, frozen=True):
    stage: str
    took_ms: float


class Budget(Struct, frozen=True):
    stages: dict[str, float] = {}
    ttft_ms: float | None = None
    duration_ms: float | None = None


class Explanation(Struct, frozen=True):
    request_id: str
    tenant: str
    model: str
    summary: str
    arrived_at: str
    steps: tuple[Step, ...]
    stages: tuple[StageSpan, ...] = ()
    caller_stages: tuple[CallerStage, ...] = ()
    budget: Budget = Budget()
    late: dict[str, str] = {}
    """What it was too late for, and the stage that took the most of that time."""
    told_by: str | None = None
    """The member of the cell that knows it, where that is another."""


class Listed(Struct, frozen=True):
    request_id: str
    arrived_at: str
    total_ms: float
    tenant: str | None = None
    service_class: str | None = field(default=None, name="class")
    outcome: str | None = None
    stages: tuple[StageSpan, ...] = ()
    over_budget: tuple[str, ...] = ()


class FoundRequests(Struct, frozen=True):
    requests: tuple[Listed, ...]
    whole: bool = True
    """False if the search ran out of time, or records of the time asked for are no longer kept."""
    not_heard: tuple[str, ...] = ()


class _Refusal(Struct, frozen=True):
    error: str


class NotAsked(Exception):
    """The gateway does not understand the question. The message is the gateway's own."""


class NotKnown(Exception):
    """The gateway knows nothing of the request. The message is the gateway's own."""


async def ask(
    session: "aiohttp.ClientSession", url: str, request_id: str, *, timeout_s: float
) -> tuple[Explanation, bytes]:
    """The explanation, and the page that it was read from. Raises `NotAGateway` and `NotKnown`."""
    try:
        page = await get_page(session, url, PATH + request_id, headers={}, timeout_s=timeout_s)
    except Unheard as unheard:
        raise NotAGateway(f"no gateway answers at {url}: {unheard}") from unheard
    try:
        if page.status == 404:
            raise NotKnown(json.decode(page.body, type=_Refusal).error)
        return json.decode(page.body, type=Explanation), page.body
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise NotAGateway(f"what answers at {url} explains no requests{_why(page)}") from error


async def search(session: "aiohttp.ClientSession", url: str, query: Mapping[str, str]) -> tuple[FoundRequests, bytes]:
    """The requests that were found, and the page that they were read from. Raises `NotAGateway` and `NotAsked`."""
    path = f"{SEARCH_PATH}?{urlencode(query)}" if query else SEARCH_PATH
    try:
        page = await get_page(session, url, path, headers={}, timeout_s=SEARCH_S_MAX, page_bytes_max=_SEARCH_BYTES_MAX)
    except Unheard as unheard:
        raise NotAGateway(f"no gateway answers at {url}: {unheard}") from unheard
    try:
        if page.status == 400:
            raise NotAsked(json.decode(page.body, type=_Refusal).error)
        return json.decode(page.body, type=FoundRequests), page.body
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise NotAGateway(f"what answers at {url} lists no requests{_why(page)}") from error


def _why(page: Page) -> str:
    return "; is it a gateway's admin listener, of this version or newer?" if page.status == 404 else ""
