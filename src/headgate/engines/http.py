"""How are an engine's bytes carried over HTTP?

Each endpoint has connections of its own, kept for a moment after an answer. There are no time limits here but that of
connecting: how long an answer may take is the relay's to decide, which knows the class. Nothing is retried here, since
retries have one owner, the scheduler.
"""

import asyncio
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from aiohappyeyeballs import start_connection  # pyright: ignore[reportUnknownVariableType]  (its addresses are bare tuples)

from headgate.engines.at_hand import AtHandAnswer
from headgate.engines.connection import EngineConnection, HttpAnswer
from headgate.engines.dialect import Dialect
from headgate.engines.faults import fault_of, why
from headgate.engines.host_names import HostNames
from headgate.engines.joined import joined
from headgate.model.fault import Fault
from headgate.model.ticket import Api
from headgate.model.units import SECOND, Duration, RequestId
from headgate.ports.engine import Answer, Call, EngineFault
from headgate.wire.joining import UnequalStream
from headgate.wire.kserve.infer import error_body
from headgate.wire.turn_budget import TurnBudget

CONNECT_S_MAX: Final = 5.0
EYES_S: Final = 0.25
"""How long one address may stay silent before the next is tried beside it."""
IDLE_S_MAX: Final = 3.0
"""How long an idle connection is kept. vLLM's uvicorn closes it after 5 s without a word; a request that is just then
on its way is lost, and would look like a failure of the engine. llama.cpp does the same after 5 s."""

WAITING_BYTES_MAX: Final = 256 * 1024 * 1024
"""Maximum number of bytes from all engines that wait to be parsed: one read from each of a thousand connections."""

_UNFIT: Final = re.compile(r"[^\t\x20-\x7e\x80-\xff]")
"""What may not stand in the value of a header."""
_OURS: Final = frozenset({"authorization", "connection", "content-length", "content-type", "host", "x-request-id"})
"""Headers that no caller's may replace."""


def turn_budget() -> TurnBudget:
    """Creates the budget shared by the engines of the running event loop."""
    call_soon = asyncio.get_running_loop().call_soon
    return TurnBudget(call_soon, time.perf_counter_ns, waiting_bytes_max=WAITING_BYTES_MAX)


def url_at(base_url: str, path: str) -> str:
    """A path of the engine at an address, which may be written with or without `/v1` at its end."""
    return base_url.rstrip("/").removesuffix("/v1") + path


def metrics_url(base_url: str, dialect: Dialect) -> str:
    """Where the metrics of the engine at an address are; some have a port of their own for them."""
    if not dialect.metrics_port_offset:
        return base_url
    parts = urlsplit(base_url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = (parts.port or (443 if parts.scheme == "https" else 80)) + dialect.metrics_port_offset
    return f"{parts.scheme}://{host}:{port}"


def authorization(api_key: str | None) -> dict[str, str]:
    return {} if api_key is None else {"authorization": f"Bearer {api_key}"}


class HttpEngine:
    """One endpoint's engine, asked over HTTP. Made inside a running loop; its owner closes it."""

    def __init__(
        self,
        url: str,
        *,
        served_model: str,
        api_key: str | None,
        dialect: Dialect,
        passes_priority: bool = False,
        watches_whole_answers: bool = True,
        on_connected: Callable[[Duration], None] | None = None,
        budget: TurnBudget | None = None,
        names: HostNames | None = None,
    ) -> None:
        """`on_connected` is called with the time that each new connection took to open.

        The `budget` bounds the parsing of all engines that share it. Without one the engine has its own, and likewise
        the addresses of host `names`.
        """
        parts = urlsplit(url)
        assert parts.hostname is not None, "an address without a host was let through"
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (80 if self._tls is None else 443)
        self.served_model = served_model
        self._passes_priority = passes_priority
        self._on_connected = on_connected
        self._dialect = dialect
        self._watches_whole = watches_whole_answers and dialect.watches_whole_answers
        self._streams_differ: set[Api] = set()
        """APIs for which a stream of this engine was found to differ from its whole answer."""
        self._lines = _lines(parts.netloc, api_key)
        self._heads = {api: f"POST {path} HTTP/1.1\r\n{self._lines}" for api, path in dialect.paths.items()}
        self._speaker = dialect.speaker(self) if dialect.speaker is not None else None
        self._loop = asyncio.get_running_loop()
        self._budget = budget or turn_budget()
        self._names = names or HostNames()
        self._open: set[EngineConnection] = set()
        self._idle: list[EngineConnection] = []
        self._pruning: asyncio.TimerHandle | None = None

    async def ask(self, call: Call) -> Answer:
        if self._speaker is not None:
            return await self._speaker.ask(call)
        if call.api not in self._heads:
            said = f"this model is not served by {call.api}; its engine speaks OpenAI's wire, at /v1/"
            return AtHandAnswer(404, error_body(said), blames=True)
        if self._joins(call) and (answer := await self._joined(call)) is not None:
            return answer
        if self._asks_progress(call):
            answer = await self._ask(self._as_stream(call))
            answer.reports_progress = True
            return answer
        return await self._ask(call)

    async def _joined(self, call: Call) -> Answer | None:
        """The whole answer joined from a stream; None if it must be requested whole."""
        if call.watch is not None:
            call.watch.begin()
        try:
            return await joined(await self._ask(self._as_stream(call)), call.api, call.watch)
        except UnequalStream:
            # The server parses its output, for instance with a reasoning parser. The first such request needs a second
            # prefill, which the prefix cache shortens; later requests cost nothing extra.
            self._streams_differ.add(call.api)
        if call.watch is not None:
            call.watch.end()
        return None

    async def _ask(self, call: Call) -> HttpAnswer:
        body = call.body.encode_in_pieces(
            served_model=self.served_model,
            passes_priority=self._passes_priority,
            cache_salt=call.cache_salt if self._dialect.takes_cache_salt else None,
        )
        closes = call.body.stream and not self._dialect.keeps_connection_after_stream
        head = self._head(self._heads[call.api], call.request_id, call.headers, sum(map(len, body)), closes=closes)
        return await self._put([head, *body], call.sent)

    async def send(
        self,
        method: str,
        path: str,
        request_id: RequestId,
        headers: Mapping[str, str],
        body: list[bytes | memoryview],
        *,
        sent: Callable[[], None] | None = None,
    ) -> HttpAnswer:
        """For a speaker: a question in its own words."""
        start = f"{method} {path} HTTP/1.1\r\n{self._lines}"
        return await self._put([self._head(start, request_id, headers, sum(map(len, body))), *body], sent)

    async def _put(self, question: list[bytes | memoryview], sent: Callable[[], None] | None) -> HttpAnswer:
        connection = self._take_idle() or await self._connect()
        return await connection.ask(question, self._dialect, sent)

    @property
    def connections(self) -> int:
        """How many are open, idle ones among them."""
        return len(self._open)

    @property
    def connections_idle(self) -> int:
        return len(self._idle)

    def close(self) -> None:
        """Lets go of the connections that carry nothing. Those that do are let go of when they end."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        if self._pruning is not None:
            self._pruning.cancel()
            self._pruning = None

    def _asks_progress(self, call: Call) -> bool:
        """Whether the engine is to report how far it has read the prompt, although the caller does not want to know."""
        switch = self._dialect.progress_switch
        if switch is None or not call.body.stream or call.api not in (Api.CHAT, Api.COMPLETIONS):
            return False
        return not call.body.has((switch,))

    def _as_stream(self, call: Call) -> Call:
        switch = self._dialect.progress_switch
        return replace(call, body=call.body.streamed(*([switch] if switch else [])))

    def _joins(self, call: Call) -> bool:
        """Whether a stream is asked for in place of the whole answer that the caller wants."""
        dialect, body = self._dialect, call.body
        if body.stream or call.api not in (Api.CHAT, Api.COMPLETIONS):
            return False
        if not dialect.hears_leaving_only_in_streams:
            watched = self._watches_whole and call.api not in self._streams_differ
            return watched and not any(body.has((name,)) for name in dialect.asked_whole)
        return not dialect.never_streamed_together or not body.has(dialect.never_streamed_together)

    # The question

    def _head(
        self, start: str, request_id: RequestId, headers: Mapping[str, str], length: int, *, closes: bool = False
    ) -> bytes:
        lines = [
            f"{name}: {value}\r\n"
            for name, value in headers.items()
            if name.lower() not in _OURS and not _UNFIT.search(value)
        ]
        if closes:
            lines.append("connection: close\r\n")
        head = f"{start}{''.join(lines)}x-request-id: {request_id}\r\ncontent-length: {length}\r\n\r\n"
        return head.encode("latin-1")

    # The connections

    async def _connect(self) -> EngineConnection:
        def connection() -> EngineConnection:
            return EngineConnection(self._freed, self._lost, self._budget)

        name = self._host if self._tls else None
        began_s = self._loop.time()
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                # Several addresses are tried side by side, so that one which stays silent does not cost the others.
                raw = await start_connection(
                    await self._names.addresses(self._host, self._port), happy_eyeballs_delay=EYES_S, loop=self._loop
                )
                _, made = await self._loop.create_connection(connection, sock=raw, ssl=self._tls, server_hostname=name)
        except TimeoutError as error:
            reason = why(error) if error.errno else f"no connection within {CONNECT_S_MAX:g} s"
            raise EngineFault(f"the engine could not be asked: {reason}", Fault.CONNECTION) from error
        except OSError as error:
            fault = fault_of(error, Fault.CONNECTION)
            raise EngineFault(f"the engine could not be asked: {why(error)}", fault) from error
        if self._on_connected is not None:
            self._on_connected(Duration(int((self._loop.time() - began_s) * SECOND)))
        if made.is_open:
            self._open.add(made)
        return made

    def _take_idle(self) -> EngineConnection | None:
        fresh_since = self._loop.time() - IDLE_S_MAX
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.idle_since > fresh_since:
                return connection
            connection.close()
        return None

    def _freed(self, connection: EngineConnection) -> None:
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._pruning is None:
            self._pruning = self._loop.call_later(IDLE_S_MAX, self._prune)

    def _lost(self, connection: EngineConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _prune(self) -> None:
        """Closes what has been idle for too long; the oldest stand first."""
        self._pruning = None
        stale_since = self._loop.time() - IDLE_S_MAX
        while self._idle and (self._idle[0].idle_since <= stale_since or not self._idle[0].is_open):
            self._idle.pop(0).close()
        if self._idle:
            self._pruning = self._loop.call_later(IDLE_S_MAX, self._prune)


def _lines(host: str, api_key: str | None) -> str:
    """What stands in the head of every question."""
    lines = {
        "host": host,
        "accept": "*/*",
        # Compressed bytes could be neither scanned nor passed on in the order of their events.
        "accept-encoding": "identity",
        "content-type": "application/json",
        "user-agent": "headgate",
    } | authorization(api_key)
    return "".join(f"{name}: {value}\r\n" for name, value in lines.items())
