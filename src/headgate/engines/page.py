"""Reads one small page over HTTP, with limits on time and size."""

import asyncio
import errno
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from headgate.engines.dns_cache import CachedResolver, DnsCache
from headgate.engines.engine_tls import EngineTls
from headgate.engines.faults import fault_of, tls_failure
from headgate.engines.http_engine import CONNECT_S_MAX, IDLE_S_MAX, url_at
from headgate.model.endpoint import NAME_UNRESOLVED, EndpointProblem
from headgate.model.fault import Fault
from headgate.ports.tls import InvalidTlsFile

PAGE_BYTES_MAX: Final = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Page:
    status: int
    headers: Mapping[str, str]
    """Response headers, with case-insensitive names."""
    body: bytes


class PageUnavailable(Exception):
    """No complete response was received. The message gives the reason, without the address."""

    def __init__(self, message: str, trouble: EndpointProblem | None = EndpointProblem.ERRORS) -> None:
        super().__init__(message)
        self.trouble = trouble
        """Endpoint problem implied by the failure. None if this process is the cause."""


def open_session(names: DnsCache | None = None, *, tls: ssl.SSLContext | None = None) -> aiohttp.ClientSession:
    """Opens the session shared by all page readers. Must run inside an event loop. The caller closes it.

    `tls` is the context for HTTPS; by default, servers are verified with the system's authorities.
    """
    resolver = CachedResolver(names or DnsCache())
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0,
            limit_per_host=0,
            keepalive_timeout=IDLE_S_MAX,
            resolver=resolver,
            use_dns_cache=False,
            ssl=True if tls is None else tls,
        ),
        timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S_MAX, sock_connect=CONNECT_S_MAX, sock_read=None),
        headers={"accept-encoding": "identity", "user-agent": "headgate"},
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


def failure_reason(error: BaseException) -> str:
    """Returns why a request failed, without the engine's address, because the reason may reach callers.

    If the cause is TLS, the next step follows the reason, after a semicolon.
    """
    if (failed := ssl_error_of(error)) is not None:
        return "; ".join(tls_failure(failed))
    match error:
        case aiohttp.ConnectionTimeoutError():
            return f"no connection within {CONNECT_S_MAX:g} s"
        case aiohttp.ClientConnectorDNSError():
            return NAME_UNRESOLVED
        case TimeoutError():
            return "no response in time"
        case aiohttp.ServerDisconnectedError():
            return "the connection was closed without a response"
        case aiohttp.ClientPayloadError():
            return "the response was truncated"
        case OSError(errno=int(number)):
            return os.strerror(number).lower()
        case OSError() | aiohttp.ClientConnectionError():
            return "the connection was lost"
        case aiohttp.ClientResponseError():
            return f"the response is not valid HTTP ({error.message[:100]})"
        case _:
            return type(error).__name__


def _server_failure_reason(error: BaseException) -> str:
    """Like `failure_reason`, for a server that is not an engine."""
    failed = ssl_error_of(error)
    return failure_reason(error) if failed is None else tls_failure_reason(failed)


def tls_failure_reason(error: ssl.SSLError) -> str:
    """Returns why a TLS connection to a server that is not an engine failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted: {error.verify_message}"
    return f"the TLS handshake failed: {(error.reason or '').replace('_', ' ').lower() or 'unknown reason'}"


def _tls_engine_failure_reason(error: BaseException) -> str:
    """Like `failure_reason`, for an engine with TLS."""
    reason = failure_reason(error)
    if _is_closed(error):
        # Some servers close the connection after the handshake instead of reporting a missing certificate.
        reason += "; if the engine requires a client certificate, check the pool's tls.certificate and tls.key"
    return reason


def ssl_error_of(error: BaseException | None) -> ssl.SSLError | None:
    """Returns the TLS error behind a failed request. aiohttp wraps it in errors of its own."""
    while error is not None:
        match error:
            # aiohttp's own errors inherit from those of `ssl`, but lack their attributes.
            case aiohttp.ClientConnectorCertificateError(certificate_error=ssl.SSLError() as cause):
                return cause
            case aiohttp.ClientConnectorError(os_error=ssl.SSLError() as cause):
                return cause
            case ssl.SSLError() if not isinstance(error, aiohttp.ClientError):
                return error
            case _:
                error = error.__cause__
    return None


def _is_closed(error: BaseException) -> bool:
    """Returns whether the server closed an established connection without a response."""
    return isinstance(error, aiohttp.ServerDisconnectedError) or (
        isinstance(error, aiohttp.ClientOSError)
        and not isinstance(error, aiohttp.ClientConnectorError)
        and ssl_error_of(error) is None
    )


def trouble_of(error: BaseException) -> EndpointProblem | None:
    """Returns the endpoint problem implied by a failed page request, or None if this process is the cause."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if fault_of(cause, Fault.CONNECTION) is Fault.GATEWAY:
        return None
    match error:
        case aiohttp.ConnectionTimeoutError() | aiohttp.ClientConnectorDNSError():
            return EndpointProblem.UNREACHABLE
        case TimeoutError():
            return EndpointProblem.UNRESPONSIVE
        case OSError(errno=errno.ECONNREFUSED):
            return EndpointProblem.CONNECTION_REFUSED
        case aiohttp.ClientPayloadError() | aiohttp.ClientResponseError():
            return EndpointProblem.ERRORS
        case _:
            return EndpointProblem.UNREACHABLE


async def get_engine_page(
    session: aiohttp.ClientSession,
    url: str,
    path: str,
    *,
    headers: Mapping[str, str],
    timeout_s: float,
    page_bytes_max: int = PAGE_BYTES_MAX,
    tls: EngineTls | None = None,
) -> Page:
    """Like `get_page`, with the TLS settings of an engine's pool."""
    try:
        context = None if tls is None else tls.context
    except InvalidTlsFile as error:
        raise PageUnavailable(f"GET {path} failed: {error}", None) from error
    options: dict[str, Any] = {}
    if tls is not None and context is not None:
        options = {"ssl": context, "server_hostname": tls.server_name}
    reason = failure_reason if context is None else _tls_engine_failure_reason
    return await _get_page(
        session,
        url,
        path,
        headers=headers,
        timeout_s=timeout_s,
        page_bytes_max=page_bytes_max,
        tls=options,
        reason=reason,
    )


async def get_page(
    session: aiohttp.ClientSession,
    url: str,
    path: str,
    *,
    headers: Mapping[str, str],
    timeout_s: float,
    page_bytes_max: int = PAGE_BYTES_MAX,
    tls: ssl.SSLContext | None = None,
) -> Page:
    """Returns the page at a path on the server at `url`. Raises `PageUnavailable`.

    `tls` is the context for HTTPS; by default, that of the session.
    """
    options: dict[str, Any] = {} if tls is None else {"ssl": tls}
    return await _get_page(
        session,
        url,
        path,
        headers=headers,
        timeout_s=timeout_s,
        page_bytes_max=page_bytes_max,
        tls=options,
        reason=_server_failure_reason,
    )


async def post_form(
    session: aiohttp.ClientSession,
    url: str,
    form: Mapping[str, str],
    *,
    headers: Mapping[str, str],
    timeout_s: float,
    page_bytes_max: int = PAGE_BYTES_MAX,
    tls: ssl.SSLContext | None = None,
) -> Page:
    """Posts a form and returns the response. Raises `PageUnavailable`."""
    options: dict[str, Any] = {} if tls is None else {"ssl": tls}
    path = urlsplit(url).path
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.post(url, data=dict(form), headers=headers, allow_redirects=False, **options) as answer,
        ):
            return Page(answer.status, answer.headers, await _read(answer, f"POST {path}", page_bytes_max))
    except (aiohttp.ClientError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        raise PageUnavailable(f"POST {path} failed: {_server_failure_reason(error)}", trouble_of(error)) from error


async def _read(answer: aiohttp.ClientResponse, request: str, page_bytes_max: int) -> bytes:
    body = bytearray()
    while data := await answer.content.readany():
        body += data
        if len(body) > page_bytes_max:
            answer.close()
            raise PageUnavailable(f"the response to {request} exceeds {page_bytes_max} bytes")
    return bytes(body)


async def _get_page(
    session: aiohttp.ClientSession,
    url: str,
    path: str,
    *,
    headers: Mapping[str, str],
    timeout_s: float,
    page_bytes_max: int,
    tls: Mapping[str, Any],
    reason: Callable[[BaseException], str],
) -> Page:
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.get(url_at(url, path), headers=headers, allow_redirects=False, **tls) as answer,
        ):
            return Page(answer.status, answer.headers, await _read(answer, f"GET {path}", page_bytes_max))
    except (aiohttp.ClientError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        raise PageUnavailable(f"GET {path} failed: {reason(error)}", trouble_of(error)) from error
