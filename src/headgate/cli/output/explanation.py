"""Responses from /explain/REQUEST_ID and /requests on the admin listener.

Unknown fields are ignored, so that the command works with newer gateways.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from msgspec import DecodeError, Struct, field, json

from headgate.cli.output.status import GatewayNotFound, get_admin_page
from headgate.engines.page import Page

if TYPE_CHECKING:
    import aiohttp

PATH = "/explain/"
SEARCH_PATH = "/requests"
SEARCH_S_MAX = 15.0
"""Response timeout. The gateway may search millions of records and then query other members of its cell."""
_SEARCH_BYTES_MAX = 16 * 1024 * 1024


class Step(Struct, frozen=True):
    at_ms: float
    event: str
    reason: str = ""


class ExplainedStage(Struct, frozen=True):
    stage: str
    at_ms: float
    duration_ms: float
    attempt: int | None = None


class CallerStage(Struct, frozen=True):
    stage: str
    duration_ms: float


class ExplainedBudget(Struct, frozen=True):
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
    stages: tuple[ExplainedStage, ...] = ()
    caller_stages: tuple[CallerStage, ...] = ()
    budget: ExplainedBudget = ExplainedBudget()
    missed_targets: dict[str, str] = {}
    """Missed targets, each with its slowest stage."""
    reported_by: str | None = None
    """Cell member that has the record, if it is not the one that was queried."""


class RequestSummary(Struct, frozen=True):
    request_id: str
    arrived_at: str
    total_ms: float
    tenant: str | None = None
    service_class: str | None = field(default=None, name="class")
    outcome: str | None = None
    stages: tuple[ExplainedStage, ...] = ()
    over_budget: tuple[str, ...] = ()


class RequestList(Struct, frozen=True):
    requests: tuple[RequestSummary, ...]
    complete: bool = True
    """False if the search timed out or some records in the time range have been deleted."""
    unreachable_members: tuple[str, ...] = ()


class _ErrorReply(Struct, frozen=True):
    error: str


class InvalidQuery(Exception):
    """The gateway rejected the query. The message comes from the gateway."""


class RequestNotFound(Exception):
    """The gateway does not know the request. The message comes from the gateway."""


async def fetch_explanation(
    session: "aiohttp.ClientSession", url: str, request_id: str, *, timeout_s: float
) -> tuple[Explanation, bytes]:
    """The explanation, and the response that it was read from. Raises `GatewayNotFound` and `RequestNotFound`."""
    page = await get_admin_page(session, url, PATH + request_id, timeout_s=timeout_s)
    try:
        if page.status == 404:
            raise RequestNotFound(json.decode(page.body, type=_ErrorReply).error)
        return json.decode(page.body, type=Explanation), page.body
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise GatewayNotFound(f"the server at {url} cannot explain requests{_hint(page)}") from error


async def search(session: "aiohttp.ClientSession", url: str, query: Mapping[str, str]) -> tuple[RequestList, bytes]:
    """The requests found, and the response that they were read from. Raises `GatewayNotFound` and `InvalidQuery`."""
    path = f"{SEARCH_PATH}?{urlencode(query)}" if query else SEARCH_PATH
    page = await get_admin_page(session, url, path, timeout_s=SEARCH_S_MAX, page_bytes_max=_SEARCH_BYTES_MAX)
    try:
        if page.status == 400:
            raise InvalidQuery(json.decode(page.body, type=_ErrorReply).error)
        return json.decode(page.body, type=RequestList), page.body
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise GatewayNotFound(f"the server at {url} cannot list requests{_hint(page)}") from error


def _hint(page: Page) -> str:
    return "; check that it is the admin listener of a gateway of this version or newer" if page.status == 404 else ""
