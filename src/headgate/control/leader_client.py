"""What does the scheduler of a cell say of its pools, as another of the cell's processes hears it?

Only whoever decides sees the pools. The others ask it every few seconds, at the address that it has told the cell, so
that an operator gets the same answer wherever they look. What was heard long ago says nothing any more.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from headgate.engines.page import Unheard, get_page
from headgate.model.units import SECOND, ClassName, Instant, PoolName, TenantId
from headgate.model.verdict import Affected, Cause, Incident, Verdict

if TYPE_CHECKING:
    import aiohttp

ASK_EVERY_S: Final = 2.0
OLD_AFTER_S: Final = 10.0
_ASK_S_MAX: Final = 1.0
_ANSWER_BYTES_MAX: Final = 1024 * 1024


class SchedulerWord:
    def __init__(
        self,
        session: "aiohttp.ClientSession",
        address: Callable[[], str | None],
        now: Callable[[], Instant],
        *,
        old_after_s: float = OLD_AFTER_S,
    ) -> None:
        """`address` is where whoever decides listens for operators, where that is another process and it is known."""
        self._session = session
        self._address = address
        self._now = now
        self._old_after_s = old_after_s
        self._heard: tuple[Verdict, ...] = ()
        self._heard_at = float("-inf")

    def verdicts(self) -> Sequence[Verdict]:
        """Of the pools; none where nothing was heard of late."""
        fresh = asyncio.get_running_loop().time() - self._heard_at < self._old_after_s
        return self._heard if fresh and self._address() is not None else ()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(ASK_EVERY_S)
            if (address := self._address()) is not None:
                await self.ask(address)

    async def ask(self, address: str) -> None:
        try:
            page = await get_page(
                self._session,
                f"http://{address}",
                "/verdict",
                headers={},
                timeout_s=_ASK_S_MAX,
                page_bytes_max=_ANSWER_BYTES_MAX,
            )
            told = msgspec.json.decode(page.body, type=_Told)
        except (Unheard, msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError):
            return
        if told.decides:
            now = self._now()
            self._heard = tuple(each.verdict(now) for each in told.verdicts if each.pool is not None)
            self._heard_at = asyncio.get_running_loop().time()


class _AffectedRow(msgspec.Struct, frozen=True, rename={"service_class": "class"}):
    service_class: str | None
    tenant: str | None
    how: str

    def affected(self) -> Affected:
        service_class = None if self.service_class is None else ClassName(self.service_class)
        return Affected(service_class, None if self.tenant is None else TenantId(self.tenant), self.how)


class _Row(msgspec.Struct, frozen=True):
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
            sentence=self.sentence,
            evidence=tuple(self.evidence),
            affected=tuple(each.affected() for each in self.affected),
            action=self.action,
        )


class _Told(msgspec.Struct, frozen=True):
    verdicts: list[_Row]
    decides: bool
