"""Client that reads verdicts from the cell's scheduler.

Only the scheduler observes the pools. The other processes query it every few seconds at the address that it registered
in the cell, so that an operator gets the same verdicts from every process. Old verdicts are dropped.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from headgate.engines.page import Page, PageUnavailable, get_page
from headgate.model.units import SECOND, ClassName, Instant, PoolName, TenantId
from headgate.model.verdict import Affected, Cause, Incident, Verdict

if TYPE_CHECKING:
    import aiohttp

ASK_EVERY_S: Final = 2.0
STALE_AFTER_S: Final = 10.0
_ASK_S_MAX: Final = 1.0
_ANSWER_BYTES_MAX: Final = 1024 * 1024


class LeaderClient:
    def __init__(
        self,
        session: "aiohttp.ClientSession",
        address: Callable[[], str | None],
        now: Callable[[], Instant],
        *,
        get: Callable[..., Awaitable[Page]] = get_page,
        stale_after_s: float = STALE_AFTER_S,
    ) -> None:
        """`address` returns the scheduler's admin address, or None if this process is the scheduler or the address is
        unknown.
        """
        self._session = session
        self._address = address
        self._now = now
        self._get = get
        self._old_after_s = stale_after_s
        self._verdicts: tuple[Verdict, ...] = ()
        self._received_at = float("-inf")

    def verdicts(self) -> Sequence[Verdict]:
        """Returns the pool verdicts. The list is empty if there is no recent response."""
        fresh = asyncio.get_running_loop().time() - self._received_at < self._old_after_s
        return self._verdicts if fresh and self._address() is not None else ()

    async def run(self) -> None:
        """Queries the scheduler until cancelled."""
        while True:
            await asyncio.sleep(ASK_EVERY_S)
            if (address := self._address()) is not None:
                await self.fetch(address)

    async def fetch(self, address: str) -> None:
        try:
            page = await self._get(
                self._session,
                member_url(address),
                "/verdict",
                headers={},
                timeout_s=_ASK_S_MAX,
                page_bytes_max=_ANSWER_BYTES_MAX,
            )
            told = msgspec.json.decode(page.body, type=_VerdictPage)
        except (PageUnavailable, msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError):
            return
        if told.decides:
            now = self._now()
            self._verdicts = tuple(each.verdict(now) for each in told.verdicts if each.pool is not None)
            self._received_at = asyncio.get_running_loop().time()


def member_url(admin: str) -> str:
    """URL of a cell member's admin listener. Its registered address has a scheme only if it uses TLS."""
    return admin if "://" in admin else f"http://{admin}"


class _AffectedRow(msgspec.Struct, frozen=True, rename={"service_class": "class"}):
    service_class: str | None
    tenant: str | None
    effect: str

    def affected(self) -> Affected:
        service_class = None if self.service_class is None else ClassName(self.service_class)
        return Affected(service_class, None if self.tenant is None else TenantId(self.tenant), self.effect)


class _VerdictRow(msgspec.Struct, frozen=True):
    pool: str | None
    cause: Cause
    incident: Incident
    since_s: int
    sentence: str
    evidence: list[str]
    affected: list[_AffectedRow]
    action: str

    def verdict(self, now: Instant) -> Verdict:
        return Verdict(
            pool=None if self.pool is None else PoolName(self.pool),
            cause=self.cause,
            incident=self.incident,
            since=Instant(now - self.since_s * SECOND),
            summary=self.sentence,
            evidence=tuple(self.evidence),
            affected=tuple(each.affected() for each in self.affected),
            action=self.action,
        )


class _VerdictPage(msgspec.Struct, frozen=True):
    verdicts: list[_VerdictRow]
    decides: bool
