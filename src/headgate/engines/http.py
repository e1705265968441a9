"""How are an engine's bytes carried over HTTP?

One session for all endpoints. It keeps no time limits but that of connecting: how long an answer may take is the
relay's to decide, which knows the class. Nothing is retried here, since retries have one owner, the scheduler.

An answer that is let go before its end has its connection cut, and that is how an engine learns that nobody waits any
more. It is cut both ways at once: some engines take a half-closed connection for a client that has left, others do not
notice it at all.
"""

import asyncio
import io
import os
import re
from typing import Final

import aiohttp

from headgate.engines.dialect import Dialect
from headgate.ports.engine import Call, EngineFault

CONNECT_S_MAX: Final = 5.0
IDLE_S_MAX: Final = 3.0
"""How long an idle connection is kept. vLLM's uvicorn closes it after 5 s without a word; a request that is just then
on its way is lost, and would look like a failure of the engine. llama.cpp does the same after 5 s."""
READ_BUFFER_BYTES: Final = 32 * 1024
"""Twice as much is held for one answer whose reader is slow; then the engine's socket is left full."""
WHOLE_BODY_BYTES_MAX: Final = 1024 * 1024
"""A longer body is written in pieces, so that other streams get their turn between them."""

_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")
_FAULTS: Final = (aiohttp.ClientError, OSError, TimeoutError, asyncio.IncompleteReadError)


def open_session() -> aiohttp.ClientSession:
    """The session that all engines and the watch share. Inside a running loop; its owner closes it."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=IDLE_S_MAX),
        timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S_MAX, sock_connect=CONNECT_S_MAX, sock_read=None),
        # Compressed bytes could be neither scanned nor passed on in the order of their events.
        headers={"accept-encoding": "identity", "user-agent": "headgate"},
        auto_decompress=False,
        read_bufsize=READ_BUFFER_BYTES,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


def url_at(base_url: str, path: str) -> str:
    """A path of the engine at an address, which may be written with or without `/v1` at its end."""
    return base_url.rstrip("/").removesuffix("/v1") + path


def authorization(api_key: str | None) -> dict[str, str]:
    return {} if api_key is None else {"authorization": f"Bearer {api_key}"}


def reason(error: BaseException) -> str:
    """Why an engine could not be asked, without its address: the reason may reach callers, who need not know it."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return f"no connection within {CONNECT_S_MAX:g} s"
        case aiohttp.ClientConnectorDNSError():
            return "its host name does not resolve"
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


class HttpEngine:
    """One endpoint's engine, asked over HTTP."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, *, served_model: str, api_key: str | None, dialect: Dialect
    ) -> None:
        self._session = session
        self._served_model = served_model
        self._dialect = dialect
        self._urls = {api: url_at(url, path) for api, path in dialect.paths.items()}
        self._headers = {"content-type": "application/json", **authorization(api_key)}

    async def ask(self, call: Call) -> "HttpAnswer":
        body = call.body.encode(served_model=self._served_model)
        headers = {name.lower(): value for name, value in call.headers.items()}
        headers |= self._headers | {"x-request-id": call.request_id}
        if call.body.stream and not self._dialect.keeps_connection_after_stream:
            headers["connection"] = "close"
        try:
            response = await self._session.post(
                self._urls[call.api],
                data=body if len(body) <= WHOLE_BODY_BYTES_MAX else io.BytesIO(body),
                headers=headers,
                # An engine that sends us elsewhere is an engine that we were not told of.
                allow_redirects=False,
            )
        except _FAULTS as error:
            raise EngineFault(f"the engine could not be asked: {reason(error)}") from error
        return HttpAnswer(response, self._dialect)


class HttpAnswer:
    """An answer whose head has come."""

    def __init__(self, response: aiohttp.ClientResponse, dialect: Dialect) -> None:
        self.status = response.status
        said = response.headers.get("content-type", "application/octet-stream")
        # It goes into a header of our own answer, where not every character may stand.
        self.content_type = _UNPRINTABLE.sub("?", said)
        self._response = response
        self._dialect = dialect

    async def read(self) -> bytes:
        try:
            return await self._response.content.readany()
        except _FAULTS as error:
            raise EngineFault(f"the engine's answer broke off: {reason(error)}") from error

    def blames_request(self, body: bytes) -> bool:
        return self._dialect.blames_request(self.status, body)

    def close(self) -> None:
        # After the last byte the connection is in the pool again and no longer the response's.
        connection = self._response.connection
        if connection is not None and connection.transport is not None:
            # A plain close would first wait until the engine has read what is still being sent.
            connection.transport.abort()
        self._response.close()
