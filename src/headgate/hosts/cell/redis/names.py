"""Ensures one live process per member name.

A process writes its incarnation under its name, with an expiry of `LEASE_S`, and renews it every `RENEW_S` over a
separate connection. Another process that wants the name waits for the entry to expire. If the entry is renewed twice in
the meantime, it belongs to a live process, and the later process does not start (`claim`). If the store loses the entry
of a running process, another process may take the name; then `keep` calls `on_lost`, and the process leaves the cell.
The rules are in `protocol/names.py`.

While the store is unavailable, names are not checked, because a cell must work without it.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from headgate.hosts.cell.protocol.names import (
    NAME_ANSWER_NS_MAX,
    NAME_LEASE_NS,
    NAME_LOOK_NS,
    NAME_RENEW_NS,
    NameAnswer,
    NameView,
)
from headgate.hosts.cell.redis.connect import Connector
from headgate.hosts.cell.redis.keys import CellKeys
from headgate.hosts.cell.redis.place import place_of
from headgate.hosts.cell.redis.problem import CAUSES, Unusable
from headgate.hosts.cell.redis.wire import Command, Wire
from headgate.model.units import MILLISECOND, SECOND

log = logging.getLogger("headgate")

LEASE_S: Final = NAME_LEASE_NS / SECOND
RENEW_S: Final = NAME_RENEW_NS / SECOND
LOOK_S: Final = NAME_LOOK_NS / SECOND
_CONNECT_S_MAX: Final = 1.0
"""A store that does not answer within this time counts as unavailable."""
_ANSWER_S_MAX: Final = NAME_ANSWER_NS_MAX / SECOND

_CLAIM: Final = """
local held = redis.call('GET', KEYS[1])
local left = redis.call('PTTL', KEYS[1])
if not held or held == ARGV[1] or left < 0 then
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return {'', 0}
end
if left > 2 * ARGV[2] then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return {held, -1}
end
return {held, left}
"""
_RELEASE: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
    redis.call('DEL', KEYS[1])
end
return 1
"""


class NameTaken(OSError):
    """A live process has the name; the text names the next step."""


class NameLease:
    def __init__(
        self,
        url: str,
        *,
        cell: str,
        member: str,
        incarnation: str,
        on_lost: Callable[[str], None],
        lease_s: float = LEASE_S,
        renew_s: float = RENEW_S,
        look_s: float = LOOK_S,
    ) -> None:
        """`on_lost` is called once, with the next step for the operator, when another process has the name."""
        self._connector = Connector(place_of(url))
        self._key = CellKeys(cell).name(member)
        self._cell, self._member, self._incarnation = cell, member, incarnation
        self._on_lost = on_lost
        self._lease_s, self._renew_s, self._look_s = lease_s, renew_s, look_s
        self._wire: Wire | None = None
        self._view = NameView()

    async def claim(self) -> None:
        """Take the name, at the latest when the entry of a dead process has expired.

        Ends within one lease after the entry was last extended, because every entry expires or is renewed. Raises
        `NameTaken` if another process renews it. Returns without the name if the store is unavailable.
        """
        while True:
            try:
                if await self._look():
                    return
            except CAUSES as cause:
                log.debug("the name of this member is not checked yet: %s", type(cause).__name__)
                self.close()
                return
            if self._view.taken:
                self.close()
                raise NameTaken(0, self._problem())
            await asyncio.sleep(self._look_s)

    async def keep(self) -> None:
        """Renew the name until cancelled, then release it. Ends by itself once another process has the name."""
        try:
            while not self._view.taken:
                has_it = await self._look_safely()
                await asyncio.sleep(self._renew_s if has_it else self._look_s)
            self._on_lost(self._problem())
        finally:
            await self._release()

    async def _look_safely(self) -> bool:
        """Whether to renew at the usual interval."""
        try:
            return await self._look()
        except asyncio.CancelledError:
            # The answer is still pending, so this connection cannot be used for anything else.
            self.close()
            raise
        except CAUSES:
            # The cell itself reports problems of the store.
            self.close()
            return True

    async def _look(self) -> bool:
        """Take or renew the name. Returns whether this process has it."""
        return self._view.answered(_read(await self._ask(_CLAIM, int(self._lease_s * 1_000))))

    def _problem(self) -> str:
        return (
            f'another running process of cell "{self._cell}" is called "{self._member}"; give one of the two another '
            "cell.member in its configuration (or another cell.name if they belong to different cells), and restart it"
        )

    async def _ask(self, script: str, *arguments: int) -> Any:
        if self._wire is None:
            async with asyncio.timeout(_CONNECT_S_MAX):
                address = await self._connector.address()
                self._wire = await self._connector.connected(address, self._lost)
        command: Command = ("EVAL", script, 1, self._key, self._incarnation, *arguments)
        [answer] = await self._wire.answers([command], _ANSWER_S_MAX)
        return answer

    async def _release(self) -> None:
        if self._view.has:
            with suppress(*CAUSES):
                await self._ask(_RELEASE)
        self.close()

    def _lost(self, cause: Exception) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the entry expires."""
        wire, self._wire = self._wire, None
        if wire is not None:
            with suppress(OSError):
                wire.close()


def _read(answer: Any) -> NameAnswer:
    try:
        held, left_ms = answer
        return NameAnswer(bytes(held).decode("latin-1"), int(left_ms) * MILLISECOND)
    except (TypeError, ValueError) as foreign:
        raise Unusable("returned an invalid answer about member names; check that it is Redis or Valkey") from foreign
