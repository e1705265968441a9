"""How is one small page read over HTTP, whole, in time and bounded in size?"""

import asyncio
import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp

from headgate.engines.faults import fault_of
from headgate.engines.host_names import HostNames, SharedResolver
from headgate.engines.http import CONNECT_S_MAX, IDLE_S_MAX, url_at
from headgate.model.endpoint import NAME_UNRESOLVED, EndpointTrouble
from headgate.model.fault import Fault

PAGE_BYTES_MAX: Final = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Page:
    status: int
    headers: Mapping[str, str]
    """By their names as aiohttp gives them: in any case."""
    body: bytes


class Unheard(Exception):
    """No whole answer came. The message says why, without the address."""

    def __init__(self, message: str, trouble: EndpointTrouble | None = EndpointTrouble.ERRORS) -> None:
        super().__init__(message)
        self.trouble = trouble
        """State of the endpoint implied by the failure; None if this process is the cause."""


def open_session(names: HostNames | None = None) -> aiohttp.ClientSession:
    """The session that all readers of pages share. Inside a running loop; its owner closes it."""
    resolver = SharedResolver(names or HostNames())
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, limit_per_host=0, keepalive_timeout=IDLE_S_MAX, resolver=resolver, use_dns_cache=False
        ),
        timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S_MAX, sock_connect=CONNECT_S_MAX, sock_read=None),
        headers={"accept-encoding": "identity", "user-agent": "headgate"},
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


def reason(error: BaseException) -> str:
    """Why an engine could not be asked, without its address: the reason may reach callers, who need not know it."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return f"no connection within {CONNECT_S_MAX:g} s"
        case aiohttp.ClientConnectorDNSError():
            return NAME_UNRESOLVED
        case TimeoutError():
            return "no answer in time"
        case aiohttp.ServerDisconnectedError():
            return "it closed the connection without an answer"
        case aiohttp.ClientPayloadError():
            return "the answer broke off"
        case OSError(errno=int(number)):
            return os.strerror(number).lower()
        case OSError() | aiohttp.ClientConnectionError():
            return "the connection was lost"
        case aiohttp.ClientResponseError():
            return f"its answer is not HTTP ({error.message[:100]})"
        case _:
            return type(error).__name__


def trouble_of(error: BaseException) -> EndpointTrouble | None:
    """State of the endpoint implied by a failed request for a page; None if this process is the cause."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if fault_of(cause, Fault.CONNECTION) is Fault.GATEWAY:
        return None
    match error:
        case aiohttp.ConnectionTimeoutError() | aiohttp.ClientConnectorDNSError():
            return EndpointTrouble.UNREACHABLE
        case TimeoutError():
            return EndpointTrouble.SILENT
        case OSError(errno=errno.ECONNREFUSED):
            return EndpointTrouble.REFUSED
        case aiohttp.ClientPayloadError() | aiohttp.ClientResponseError():
            return EndpointTrouble.ERRORS
        case _:
            return EndpointTrouble.UNREACHABLE


async def get_page(
    session: aiohttp.ClientSession,
    url: str,
    path: str,
    *,
    headers: Mapping[str, str],
    timeout_s: float,
    page_bytes_max: int = PAGE_BYTES_MAX,
) -> Page:
    """The page at a path of whoever listens at the address; raises `Unheard`."""
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.get(url_at(url, path), headers=headers, allow_redirects=False) as answer,
        ):
            body = bytearray()
            while data := await answer.content.readany():
                body += data
                if len(body) > page_bytes_max:
                    answer.close()
                    raise Unheard(f"GET {path} answers with more than {page_bytes_max} bytes")
            return Page(answer.status, answer.headers, bytes(body))
    except (aiohttp.ClientError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        raise Unheard(f"GET {path} failed: {reason(error)}", trouble_of(error)) from error
