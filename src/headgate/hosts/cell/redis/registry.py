"""Registry of the cell members' admin addresses, and of which member is the scheduler.

Each member writes its entry into one hash of the store every two seconds, over a separate connection, so that the cell
does not have to wait for it. The next writer removes entries that have not been renewed for ten seconds, by the store's
clock. The hash expires when no member writes to it. While the store is unavailable, the last entries read are used for
ten seconds.

A member with a loopback address is registered without an address if the store is on another machine, because other
members would reach themselves at that address.

The registry also renews the name of this member (`name_lease`).

Entries are validated as strictly as client input. They are shown only to operators, and only read-only requests are
sent to these addresses.
"""

import asyncio
import ipaddress
import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from headgate.hosts.cell.redis.connection import RedisCommand, RedisConnection
from headgate.hosts.cell.redis.connector import Connector
from headgate.hosts.cell.redis.keys import CellKeys
from headgate.hosts.cell.redis.location import parse_store_url
from headgate.hosts.cell.redis.name_lease import NameLease
from headgate.hosts.cell.redis.store_errors import STORE_ERRORS

log = logging.getLogger("headgate")

PUBLISH_EVERY_S: Final = 2.0
ENTRY_EXPIRES_S: Final = 10
MEMBERS_MAX: Final = 256
"""Maximum number of registered members."""
_ANSWER_S_MAX: Final = 0.5
_MEMBER: Final = re.compile(r"[A-Za-z0-9_.:-]{1,160}")
_VALUE: Final = re.compile(
    r"[0-9]{1,16} ([01]) (-|(?:https://)?(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):[0-9]{1,5})"
)
_NO_ADDRESS: Final = "-"
_WILDCARDS: Final = ("0.0.0.0", "::", "")  # noqa: S104 (compared only; this module does not listen)

_SCRIPT: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known, count = redis.call('HGETALL', KEYS[1]), 0
for at = 1, #known, 2 do
    local expires = tonumber(string.match(known[at + 1], '^(%d+) ') or '') or 0
    if expires <= now or known[at] == ARGV[1] then
        redis.call('HDEL', KEYS[1], known[at])
    else
        count = count + 1
    end
end
if ARGV[2] ~= '' and count < tonumber(ARGV[4]) then
    redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now + ARGV[3]) .. ' ' .. ARGV[2])
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return redis.call('HGETALL', KEYS[1])
"""


class CellMember(NamedTuple):
    name: str
    admin: str
    """Host and port of the admin listener, after `https://` if it uses TLS. Empty if other members cannot reach it."""
    is_leader: bool


class MemberRegistry:
    def __init__(
        self,
        url: str,
        *,
        cell: str,
        member: str,
        admin: Callable[[], tuple[str, int]],
        is_leader: Callable[[], bool],
        name: NameLease | None = None,
        every_s: float = PUBLISH_EVERY_S,
        expires_s: int = ENTRY_EXPIRES_S,
        https: bool = False,
    ) -> None:
        """`admin` returns the admin address of this process, `is_leader` whether it is currently the scheduler. `https`
        is true if its admin listener uses TLS.

        `name` is renewed while the registry runs.
        """
        self._name = name
        self._connector = Connector(parse_store_url(url))
        self._key = CellKeys(cell).admin
        self._member = member
        self._admin = admin
        self._scheme = "https://" if https else ""
        self._leads = is_leader
        self._every_s = every_s
        self._expires_s = expires_s
        self._wire: RedisConnection | None = None
        self._known: tuple[CellMember, ...] = ()
        self._read_at = float("-inf")
        self._warned = False

    def members(self) -> list[CellMember]:
        """Returns the members registered in the last few seconds, including this one, sorted by name."""
        fresh = time.monotonic() - self._read_at < self._expires_s
        return list(self._known) if fresh else []

    async def claim_name(self) -> None:
        """Claims the name of this member. Raises `NameTaken` if another process has it."""
        if self._name is not None:
            await self._name.claim()

    async def run(self) -> None:
        """Runs until cancelled, then removes this member's entry."""
        async with asyncio.TaskGroup() as tasks:
            if self._name is not None:
                tasks.create_task(self._name.run())
            tasks.create_task(self._run())

    async def _run(self) -> None:
        try:
            while True:
                await self._publish(present=True)
                await asyncio.sleep(self._every_s)
        finally:
            # Skipped while the store is unavailable, so the entry expires.
            if self.members():
                await self._publish(present=False)
            self._close()

    async def _publish(self, *, present: bool) -> None:
        try:
            if self._wire is None:
                address = await self._connector.address()
                self._wire = await self._connector.connect(address, self._lost)
            [answer] = await self._wire.request([self._command(self._wire, present=present)], _ANSWER_S_MAX)
            self._known, self._read_at = parse_members(answer), time.monotonic()
        except asyncio.CancelledError:
            # The reply is still pending, so this connection cannot be used for anything else.
            self._close()
            raise
        except STORE_ERRORS as cause:
            # The cell itself reports problems with the store.
            log.debug("could not read the addresses of the cell's members: %s", type(cause).__name__)
            self._close()

    def _command(self, wire: RedisConnection, *, present: bool) -> RedisCommand:
        value = f"{int(self._leads())} {self._address(wire.local_host)}" if present else ""
        return ("EVAL", _SCRIPT, 1, self._key, self._member, value, self._expires_s * 1_000, MEMBERS_MAX)

    def _address(self, local_host: str | None) -> str:
        """Returns the address at which others can reach this process. `local_host` is None for a Unix socket."""
        host, port = self._admin()
        # Members whose store is on this machine are running on this machine too.
        beside_store = local_host is None or _is_loopback(local_host)
        if host in _WILDCARDS:
            # For a wildcard address, other members use the local address of the connection to the store.
            host = local_host or "127.0.0.1"
        if _is_loopback(host) and not beside_store:
            self._warn(host)
            return _NO_ADDRESS
        return self._scheme + (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    def _warn(self, host: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "admin_listen is on %s, so other machines in the cell cannot query this gateway's requests and "
                "verdicts; set it to an address on the internal network",
                host,
            )

    def _lost(self, cause: Exception) -> None:
        self._close()

    def _close(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            with suppress(OSError):
                wire.close()


def parse_members(answer: Any) -> tuple[CellMember, ...]:
    """Parses the store's entries. Invalid entries are skipped."""
    if not isinstance(answer, list):
        return ()
    texts = [each.decode("ascii", "replace") if isinstance(each, bytes) else "" for each in answer]  # pyright: ignore[reportUnknownVariableType]
    found: list[CellMember] = []
    for name, value in zip(texts[::2], texts[1::2], strict=False):
        told = _VALUE.fullmatch(value)
        if told is not None and _MEMBER.fullmatch(name) and len(found) < MEMBERS_MAX:
            found.append(CellMember(name, "" if told[2] == _NO_ADDRESS else told[2], told[1] == "1"))
    return tuple(sorted(found))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"
