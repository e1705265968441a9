"""What does a running gateway say of one request?

What its admin listener's /explain/REQUEST_ID shows, as far as people are told of it. Fields that this version does not
know are left alone, so that a gateway may be newer than whoever asks.
"""

from typing import TYPE_CHECKING

from msgspec import DecodeError, Struct, json

from headgate.cli.gateway_status import NotAGateway
from headgate.engines.page import Page, Unheard, get_page

if TYPE_CHECKING:
    import aiohttp

PATH = "/explain/"


class Step(Struct, frozen=True):
    at_ms: float
    what: str
    why: str = ""


class Explanation(Struct, frozen=True):
    request_id: str
    tenant: str
    model: str
    summary: str
    arrived_at: str
    steps: tuple[Step, ...]


class _Refusal(Struct, frozen=True):
    error: str


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


def _why(page: Page) -> str:
    return "; is it a gateway's admin listener, of this version or newer?" if page.status == 404 else ""
