"""Lease of a member name, so that only one running process has it.

A process writes its incarnation under its name, with an expiry of `LEASE_S`, and renews it every `RENEW_S` over a
separate connection. Another process that wants the name waits for the entry to expire. If the entry is renewed twice in
the meantime, it belongs to a running process, and the later process does not start (`claim`). If the store loses the
entry of a running process, another process may take the name. `run` then calls `on_lost`, and the process leaves the
cell. `protocol/member_names.py` contains the rules.

While the store is unavailable, names are not checked, because a cell must work without it.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from headgate.hosts.cell.protocol.member_names import (
    NAME_ANSWER_NS_MAX,
    NAME_LEASE_NS,
    NAME_POLL_NS,
    NAME_RENEW_NS,
    NameAnswer,
    NameClaim,
)
from headgate.hosts.cell.redis.connection import RedisCommand, RedisConnection
from headgate.hosts.cell.redis.connector import Connector
from headgate.hosts.cell.redis.keys import CellKeys
from headgate.hosts.cell.redis.location import parse_store_url
from headgate.hosts.cell.redis.store_errors import STORE_ERRORS, StoreUnusable
from headgate.model.units import MILLISECOND, SECOND

log = logging.getLogger("headgate")

LEASE_S: Final = NAME_LEASE_NS / SECOND
RENEW_S: Final = NAME_RENEW_NS / SECOND
POLL_S: Final = NAME_POLL_NS / SECOND
_CONNECT_S_MAX: Final = 1.0
"""Time after which a store that does not respond counts as unavailable."""
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
    """A running process has the name. The message includes the next step."""


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
        poll_s: float = POLL_S,
    ) -> None:
        """`on_lost` is called once, with the problem and the next step, when another process has the name."""
        self._connector = Connector(parse_store_url(url))
        self._key = CellKeys(cell).name(member)
        self._cell, self._member, self._incarnation = cell, member, incarnation
        self._on_lost = on_lost
        self._lease_s, self._renew_s, self._look_s = lease_s, renew_s, poll_s
        self._wire: RedisConnection | None = None
        self._claim = NameClaim()

    async def claim(self) -> None:
        """Takes the name, waiting for the entry of a dead process to expire if necessary.

        Returns within one lease of the entry's last extension, because every entry expires or is renewed. Raises
        `NameTaken` if another process renews it. Returns without the name if the store is unavailable.
        """
        while True:
            try:
                if await self._claim_once():
                    return
            except STORE_ERRORS as cause:
                log.debug("could not check this member's name: %s", type(cause).__name__)
                self.close()
                return
            if self._claim.is_taken:
                self.close()
                raise NameTaken(0, self._problem())
            await asyncio.sleep(self._look_s)

    async def run(self) -> None:
        """Renews the name until cancelled, then releases it. Ends when another process has the name."""
        try:
            while not self._claim.is_taken:
                has_it = await self._renew()
                await asyncio.sleep(self._renew_s if has_it else self._look_s)
            self._on_lost(self._problem())
        finally:
            await self._release()

    async def _renew(self) -> bool:
        """Renews the name. Returns whether to wait for the usual interval."""
        try:
            return await self._claim_once()
        except asyncio.CancelledError:
            # The reply is still pending, so this connection cannot be used for anything else.
            self.close()
            raise
        except STORE_ERRORS:
            # The cell itself reports problems with the store.
            self.close()
            return True

    async def _claim_once(self) -> bool:
        """Takes or renews the name. Returns whether this process has it."""
        return self._claim.apply_answer(_parse_answer(await self._run_script(_CLAIM, int(self._lease_s * 1_000))))

    def _problem(self) -> str:
        return (
            f'another running process of cell "{self._cell}" is named "{self._member}"; set a different '
            "cell.member_name for one of them (or a different cell.name if they belong to different cells) and restart "
            "it"
        )

    async def _run_script(self, script: str, *arguments: int) -> Any:
        if self._wire is None:
            async with asyncio.timeout(_CONNECT_S_MAX):
                address = await self._connector.address()
                self._wire = await self._connector.connect(address, self._lost)
        command: RedisCommand = ("EVAL", script, 1, self._key, self._incarnation, *arguments)
        [answer] = await self._wire.request([command], _ANSWER_S_MAX)
        return answer

    async def _release(self) -> None:
        if self._claim.is_held:
            with suppress(*STORE_ERRORS):
                await self._run_script(_RELEASE)
        self.close()

    def _lost(self, cause: Exception) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. The entry expires."""
        wire, self._wire = self._wire, None
        if wire is not None:
            with suppress(OSError):
                wire.close()


def _parse_answer(answer: Any) -> NameAnswer:
    try:
        held, left_ms = answer
        return NameAnswer(bytes(held).decode("latin-1"), int(left_ms) * MILLISECOND)
    except (TypeError, ValueError) as foreign:
        raise StoreUnusable(
            "returned an invalid response to the member-name query; check that it is Redis or Valkey"
        ) from foreign
