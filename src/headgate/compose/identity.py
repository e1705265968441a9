"""Token issuers of one process: their keys, the tokens accepted from them, and their state for operators."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from headgate.engines.page import PageUnavailable, get_page, post_form
from headgate.identity.issuer_keys import PAGE_BYTES_MAX, IssuerKeys, IssuerUnavailable
from headgate.identity.login import ProviderLogin
from headgate.identity.operators import TokenOperators
from headgate.identity.options import IssuerOptions, OperatorTokenOptions
from headgate.identity.tokens import TokenCounts, TokenTenants
from headgate.model.units import TenantId
from headgate.ports.identity import CallerTokens, OperatorLogin, OperatorTokens, TokenFault
from headgate.ports.tls import ClientTlsOptions, InvalidTlsFile, named_client_context
from headgate.telemetry.identity_metrics import IdentityStats
from headgate.telemetry.log import LogLimit, log_event
from headgate.wire.escape import printable

if TYPE_CHECKING:
    import aiohttp

_FETCH_S_MAX: Final = 5.0
_FIRST_READ_S_MAX: Final = 3.0
"""Maximum time in seconds to wait at startup for the issuers' keys."""
_DETAIL_CHARS_MAX: Final = 200


class Identity:
    """Must be created and run inside an event loop."""

    def __init__(
        self,
        issuers: Sequence[IssuerOptions],
        operators: OperatorTokenOptions | None,
        session: "aiohttp.ClientSession",
    ) -> None:
        self._session = session
        self._issuers: dict[IssuerOptions, IssuerKeys] = {}
        self._running: dict[IssuerOptions, asyncio.Task[None]] = {}
        self._on_task_done: Callable[[asyncio.Task[None]], None] | None = None
        self._limit = LogLimit("suppressed log lines for rejected tokens", time.time)
        self._counts = TokenCounts(self._log_rejected)
        self._tokens = TokenTenants((), self._counts)
        self.operators: OperatorTokens | None = None
        """Verifies operators' tokens. None if not configured."""
        self.login: OperatorLogin | None = None
        """Browser login for operators. None if not configured."""
        self.change_to(issuers, operators)

    async def start(self, on_task_done: Callable[["asyncio.Task[None]"], None]) -> None:
        """Starts reading the keys, and waits briefly for them. `on_task_done` is called for each task that ends."""
        self._on_task_done = on_task_done
        self._follow()
        reads = [asyncio.create_task(each.read_once.wait()) for each in self._issuers.values()]
        _, late = await asyncio.wait(reads, timeout=_FIRST_READ_S_MAX)
        for each in late:
            each.cancel()

    async def stop(self) -> None:
        for task in (running := tuple(self._running.values())):
            task.cancel()
        if running:
            await asyncio.wait(running)
        for issuer in self._issuers.values():
            await issuer.stop()

    def change_to(self, issuers: Sequence[IssuerOptions], operators: OperatorTokenOptions | None) -> None:
        """Applies a new configuration. Issuers that have not changed keep their keys."""
        if tuple(issuers) != tuple(self._issuers):
            self._change_issuers(issuers)
        named = {options.name: issuer for options, issuer in self._issuers.items()}
        self.operators = self.login = None
        if operators is not None:
            issuer = named[operators.issuer]
            self.operators = TokenOperators(issuer, operators, self._counts)
            if operators.login is not None:
                self.login = ProviderLogin(issuer, operators, operators.login, self._counts, self._send_form)

    def _change_issuers(self, issuers: Sequence[IssuerOptions]) -> None:
        before = self._issuers
        self._issuers = {each: before.get(each) or IssuerKeys(each, self._fetch) for each in issuers}
        self._tokens = TokenTenants(self._issuers.values(), self._counts)
        if self._on_task_done is not None:
            self._follow()

    def _follow(self) -> None:
        """Reads the keys of the current issuers, and no longer those of the earlier ones."""
        assert self._on_task_done is not None
        for gone in self._running.keys() - self._issuers.keys():
            self._running.pop(gone).cancel()
        for options, issuer in self._issuers.items():
            if options not in self._running:
                task = asyncio.create_task(issuer.run(), name=f"read the keys of issuer {options.name}")
                task.add_done_callback(self._on_task_done)
                self._running[options] = task

    def tokens(self, is_known: Callable[[TenantId], bool]) -> CallerTokens:
        """Returns callers' tokens. `is_known` returns whether a tenant exists; it may raise `InvalidToken`."""
        self._tokens.is_known = is_known
        return self._tokens

    async def _fetch(self, url: str, tls: ClientTlsOptions | None) -> bytes:
        parts = urlsplit(url)
        path = parts._replace(scheme="", netloc="").geturl() or "/"
        try:
            # Authorities are read again each time, because their file may have changed.
            context = None if tls is None else await asyncio.to_thread(named_client_context, tls)
            page = await get_page(
                self._session,
                f"{parts.scheme}://{parts.netloc}",
                path,
                headers={},
                timeout_s=_FETCH_S_MAX,
                page_bytes_max=PAGE_BYTES_MAX,
                tls=context,
            )
        except (PageUnavailable, InvalidTlsFile) as error:
            raise IssuerUnavailable(str(error)) from error
        if page.status != 200:
            raise IssuerUnavailable(f"GET {path} returned status {page.status}")
        return page.body

    async def _send_form(
        self, url: str, form: Mapping[str, str], headers: Mapping[str, str], tls: ClientTlsOptions | None
    ) -> tuple[int, bytes]:
        try:
            context = None if tls is None else await asyncio.to_thread(named_client_context, tls)
            page = await post_form(
                self._session,
                url,
                form,
                headers=headers,
                timeout_s=_FETCH_S_MAX,
                page_bytes_max=PAGE_BYTES_MAX,
                tls=context,
            )
        except (PageUnavailable, InvalidTlsFile) as error:
            raise IssuerUnavailable(str(error)) from error
        return page.status, page.body

    def _log_rejected(self, fault: TokenFault, detail: str) -> None:
        if self._limit.allows():
            shown = printable(detail, _DETAIL_CHARS_MAX)
            log_event(logging.INFO, "token rejected", reason=fault.value, detail=shown)

    # Output

    def stats(self) -> IdentityStats:
        rejected = {fault.value: count for fault, count in self._counts.rejected.items()}
        issuers = [(each.stats(), self._counts.accepted.get(each.options.name, 0)) for each in self._issuers.values()]
        return IdentityStats(issuers, rejected)

    def status(self) -> Mapping[str, object]:
        return {each.options.name: each.status() for each in self._issuers.values()}
