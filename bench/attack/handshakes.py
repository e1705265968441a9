"""Attacks on TLS handshakes, against a second gateway with TLS and the same engines.

A client with a key must be served over TLS during each attack.
"""

import asyncio
import contextlib
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from bench.attack.attacked_gateway import VICTIM, AttackedGateway, config
from testing.certificates import Authority
from testing.gateway import RunningGateway, chat, gateway_process_with_client
from testing.hostile_handshakes import client_hello, hostile_bytes
from testing.processes import ChildProcess
from testing.simulated_engines import resident_mib

_CONNECTIONS_MAX: Final = 512
_HANDSHAKES: Final = 4_000
_REPEATS: Final = 20
_GROWTH_MIB_MAX: Final = 100.0
_VICTIM_S_MAX: Final = 5.0
_CLOSED_S_MAX: Final = 20.0


@dataclass(frozen=True, slots=True)
class _TlsGateway:
    gateway: RunningGateway
    process: ChildProcess
    context: ssl.SSLContext

    async def victim_problem(self) -> str | None:
        """Send a short request on a new connection. Return None if it was served in time.

        During a burst, the gateway may close the connection before the client has sent its key. The client then
        connects again, as the usual client libraries do.
        """
        began, status = time.monotonic(), 0
        headers = {"authorization": f"Bearer {VICTIM}", "connection": "close"}
        while not status and time.monotonic() - began < _VICTIM_S_MAX:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with self.gateway.post(chat(user="ok"), headers=headers, ssl=self.context) as answer:
                    await answer.read()
                    status = answer.status
        took_s = time.monotonic() - began
        if not status or took_s > _VICTIM_S_MAX:
            return f"a client with a key was not served within {_VICTIM_S_MAX:g} s"
        return None if status == 200 else f"a client with a key got {status}"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.gateway.url)
        return await asyncio.open_connection(parts.hostname, parts.port)


@asynccontextmanager
async def _tls_gateway(stage: AttackedGateway) -> AsyncIterator[_TlsGateway]:
    with tempfile.TemporaryDirectory(prefix="headgate-attack-tls-") as name:
        folder = Path(name)
        authority = Authority(folder / "pki")
        settings = config([each.url for each in stage.engines]) | {"listen_tls": authority.issue()._asdict()}
        settings["limits"] = {"connections_open_max": _CONNECTIONS_MAX, "header_timeout": "3s"}
        async with gateway_process_with_client(settings, folder) as (gateway, process):
            yield _TlsGateway(gateway, process, authority.client_context())


async def _measured(stage: AttackedGateway, attack: Callable[[_TlsGateway], Awaitable[None]]) -> str | None:
    """Run an attack while a client with a key sends requests."""
    async with _tls_gateway(stage) as target:
        before = resident_mib(target.process.pid)
        attacker = asyncio.create_task(attack(target))
        found = None
        while found is None and not attacker.done():
            found = await target.victim_problem()
            await asyncio.wait([attacker], timeout=0.1)
        attacker.cancel()
        await asyncio.gather(attacker, return_exceptions=True)
        if found is None and not attacker.cancelled() and (failed := attacker.exception()) is not None:
            raise failed
        found = found or await target.victim_problem()
        grown = resident_mib(target.process.pid) - before
        return f"memory grew by {grown:.0f} MiB" if found is None and grown > _GROWTH_MIB_MAX else found


async def hostile_first_bytes(stage: AttackedGateway) -> str | None:
    """Send each of the known hostile first bytes many times."""

    async def attack(target: _TlsGateway) -> None:
        for sent in hostile_bytes().values():
            await asyncio.gather(*(_send(target, sent.data) for _ in range(_REPEATS)))

    return await _measured(stage, attack)


async def slow_handshakes(stage: AttackedGateway) -> str | None:
    """Send ClientHellos one byte at a time, on as many connections as the gateway accepts."""

    async def attack(target: _TlsGateway) -> None:
        await asyncio.gather(*(_drip(target) for _ in range(_CONNECTIONS_MAX)))

    return await _measured(stage, attack)


async def thousands_of_open_handshakes(stage: AttackedGateway) -> str | None:
    """Start many times more handshakes than the gateway allows connections, and complete none."""

    async def attack(target: _TlsGateway) -> None:
        hello = client_hello()
        opened: list[asyncio.StreamWriter] = []
        try:
            for _ in range(_HANDSHAKES):
                with contextlib.suppress(ConnectionError):
                    _, writer = await target.connect()
                    writer.write(hello)
                    opened.append(writer)
                if len(opened) > 2 * _CONNECTIONS_MAX:
                    opened.pop(0).transport.abort()
        finally:
            for writer in opened:
                writer.transport.abort()

    return await _measured(stage, attack)


async def _send(target: _TlsGateway, data: bytes) -> None:
    with contextlib.suppress(ConnectionError, TimeoutError):
        reader, writer = await target.connect()
        try:
            writer.write(data)
            async with asyncio.timeout(_CLOSED_S_MAX):
                await reader.read()
        finally:
            writer.close()


async def _drip(target: _TlsGateway) -> None:
    with contextlib.suppress(ConnectionError):
        reader, writer = await target.connect()
        closed = asyncio.create_task(reader.read())
        try:
            for byte in client_hello():
                writer.write(bytes([byte]))
                await asyncio.wait([closed], timeout=0.1)
                if closed.done():
                    break
        finally:
            closed.cancel()
            await asyncio.gather(closed, return_exceptions=True)
            writer.transport.abort()
