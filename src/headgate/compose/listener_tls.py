"""Certificates of this process's listeners, replaced when their files change.

New connections use the new certificate, and open connections continue. If the new files cannot be used, the
previous certificate stays in use. Each process manages its own certificates: a cell does not coordinate them.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.config.listener_tls import listeners_with_tls
from headgate.config.settings import Settings
from headgate.control.file_watch import FileWatch
from headgate.edge.listener import Listener
from headgate.edge.tls_handshake import HandshakeFailure
from headgate.engines.page import Page, get_page
from headgate.ports.tls import (
    InvalidTlsFile,
    ServerTlsOptions,
    UsableCertificate,
    named_client_context,
    timestamp_text,
    usable_server_context,
)
from headgate.telemetry.log import log_event
from headgate.telemetry.tls_metrics import HandshakeLog, ListenerTlsStats

if TYPE_CHECKING:
    import aiohttp


@dataclass(slots=True)
class _ListenerTls:
    options: ServerTlsOptions
    certificate: UsableCertificate
    problem: str | None = None
    """Why one of the current files cannot be used; None if all are in use."""
    listener: Listener | None = None


class ListenerCertificates:
    """The TLS contexts of all listeners that have one, by the name of the listener's setting."""

    def __init__(self, settings: Settings, *, serves: bool, now_s: Callable[[], float] = time.time) -> None:
        """Raises `InvalidTlsFile`. Without `serves`, the process has only an admin listener."""
        self._serves = serves
        self._now_s = now_s
        self._reading = asyncio.Lock()
        self._active = {
            setting.removesuffix("_tls"): _ListenerTls(options, usable_server_context(options, now_s()))
            for setting, options in listeners_with_tls(settings, serves=serves)
        }
        self.member_headers: Callable[[], Mapping[str, str]] = dict
        """Returns the headers that authenticate this process to other members of the cell."""
        self._client_options = settings.admin_client_tls
        self._watch = FileWatch(self._files, self.reload)
        self._client = None if self._client_options is None else named_client_context(self._client_options)

    def context(self, name: str) -> ssl.SSLContext | None:
        """Context of the listener with this setting; None without TLS."""
        return self._active[name].certificate.context if name in self._active else None

    def attach(self, name: str, listener: Listener) -> Listener:
        """Replaces the listener's certificate from now on, and logs its failed handshakes."""
        if name in self._active:
            self._active[name].listener = listener
            log = HandshakeLog(name, self._now_s)
            listener.connections.log_handshake_failure = partial(_log_failure, log)
        return listener

    # Reload

    async def run(self) -> None:
        """Watches the files until cancelled."""
        # The files may have changed since the start of the process.
        await self.reload()
        await self._watch.run()

    def _files(self) -> Sequence[Path]:
        options = [*(each.options for each in self._active.values()), self._client_options]
        return [Path(file) for each in options if each is not None for file in each.files]

    async def change_to(self, settings: Settings) -> None:
        """Applies a new configuration. TLS cannot be turned on or off while a listener is open."""
        wanted = {
            setting.removesuffix("_tls"): options
            for setting, options in listeners_with_tls(settings, serves=self._serves)
        }
        for name, active in self._active.items():
            active.options = wanted.get(name, active.options)
        if "admin_listen" in wanted and "admin_listen" in self._active:
            self._client_options = settings.admin_client_tls
        self._watch.add(self._files())
        await self.reload()

    async def reload(self) -> None:
        """Reads all files. If a listener's files cannot be used, it keeps its certificate."""
        async with self._reading:
            await self._reload()

    async def _reload(self) -> None:
        client_problem = await self._reload_client()
        for name, active in self._active.items():
            try:
                # A file on a network volume may take long to respond.
                certificate = await asyncio.to_thread(usable_server_context, active.options, self._now_s())
            except InvalidTlsFile as problem:
                self._reject(name, active, str(problem))
                continue
            problem = client_problem if name == "admin_listen" else None
            repaired = active.problem is not None and problem is None
            is_new = active.certificate.digest != certificate.digest
            active.certificate, active.problem = certificate, problem
            if active.listener is not None:
                active.listener.connections.tls = certificate.context
            if is_new or repaired:
                expires = timestamp_text(certificate.expires_at)
                log_event(logging.INFO, "certificate replaced", listener=name, expires=expires)

    def _reject(self, name: str, active: _ListenerTls, problem: str) -> None:
        active.problem = problem
        expires = timestamp_text(active.certificate.expires_at)
        log_event(
            logging.ERROR,
            "the changed certificate cannot be used; the previous one stays in use",
            listener=name,
            problem=problem,
            previous_expires=expires,
        )

    async def _reload_client(self) -> str | None:
        """Reads the files for calls to other gateways, which belong to `admin_listen_tls`. Returns why they cannot be
        used.
        """
        options = self._client_options
        if options is None:
            return None
        try:
            self._client = await asyncio.to_thread(named_client_context, options)
        except InvalidTlsFile as problem:
            log_event(logging.ERROR, "cannot read the files for calls to other gateways", problem=str(problem))
            return str(problem)
        return None

    # Calls to other members of the cell

    @property
    def uses_https_for_admin(self) -> bool:
        return "admin_listen" in self._active

    async def get_member_page(self, session: "aiohttp.ClientSession", url: str, path: str, **options: Any) -> Page:
        """Like `get_page`, with this process's authorities and client certificate."""
        options["headers"] = {**options.get("headers", {}), **self.member_headers()}
        return await get_page(session, url, path, tls=self._client, **options)

    # Output

    def stats(self) -> Sequence[ListenerTlsStats]:
        return [
            ListenerTlsStats(
                name,
                round(each.certificate.expires_at - self._now_s(), 1),
                each.problem is not None,
                _failures(each.listener),
            )
            for name, each in self._active.items()
        ]

    def status(self) -> Mapping[str, object]:
        return {} if not self._active else {"tls": dict(self._status())}

    def _status(self) -> Iterator[tuple[str, Mapping[str, object]]]:
        for name, each in self._active.items():
            yield (
                name,
                {
                    "certificate": each.options.certificate,
                    "expires_at": timestamp_text(each.certificate.expires_at),
                    "expires_in_s": round(each.certificate.expires_at - self._now_s()),
                    "client_certificates": each.options.client_ca is not None,
                    "problem": each.problem,
                    "handshake_failures": {name: count for name, count in _failures(each.listener).items() if count},
                },
            )


def _failures(listener: Listener | None) -> Mapping[str, int]:
    counts = None if listener is None else listener.connections.handshake_failures
    return {reason.value: 0 if counts is None else counts[reason] for reason in HandshakeFailure}


def _log_failure(log: HandshakeLog, why: HandshakeFailure, client: str, detail: str) -> None:
    # Load balancers check ports by opening and closing a connection.
    level = logging.DEBUG if why is HandshakeFailure.CLOSED else logging.INFO
    log.log_failure(why.value, client, detail, level=level)
