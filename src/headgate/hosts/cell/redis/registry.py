"""Registry of the admin addresses of a cell's members, and of which member is the scheduler.

Each member writes its entry into one hash of the store every two seconds, over a separate connection, so that the work
of the cell does not wait for it. The next writer removes entries that were not renewed for ten seconds by the store's
clock; the hash itself expires when no member writes any more. While the store is unavailable, the entries that were
read last are used for ten seconds.

A member with a loopback address, while the store is on another machine, is registered without an address: other members
would reach themselves there.

The registry also keeps the name of this member (`names`).

Entries are validated as strictly as input from callers. They are shown to operators only, and only read-only requests
are sent to these addresses.
"""

import asyncio
import ipaddress
import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from headgate.hosts.cell.redis.connect import Connector
from headgate.hosts.cell.redis.keys import CellKeys
from headgate.hosts.cell.redis.names import NameLease
from headgate.hosts.cell.redis.place import place_of
from headgate.hosts.cell.redis.problem import CAUSES
from headgate.hosts.cell.redis.wire import Command, Wire

log = logging.getLogger("headgate")

EVERY_S: Final = 2.0
EXPIRES_S: Final = 10
MEMBERS_MAX: Final = 256
"""More than these are not written down."""
_ANSWER_S_MAX: Final = 0.5
_MEMBER: Final = re.compile(r"[A-Za-z0-9_.:-]{1,160}")
_VALUE: Final = re.compile(r"[0-9]{1,16} ([01]) (-|(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):[0-9]{1,5})")
_NOWHERE: Final = "-"
_WILDCARDS: Final = ("0.0.0.0", "::", "")  # noqa: S104 (it is looked for, not listened on)

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
    """Host and port of its admin listener; empty where others cannot reach it."""
    leads: bool


class Registry:
    def __init__(
        self,
        url: str,
        *,
        cell: str,
        member: str,
        admin: Callable[[], tuple[str, int]],
        leads: Callable[[], bool],
        name: NameLease | None = None,
        every_s: float = EVERY_S,
        expires_s: int = EXPIRES_S,
    ) -> None:
        """`admin` returns the admin address of this process; `leads` whether it is the scheduler at the moment.

        `name` is renewed while this runs.
        """
        self._name = name
        self._connector = Connector(place_of(url))
        self._key = CellKeys(cell).admin
        self._member = member
        self._admin = admin
        self._leads = leads
        self._every_s = every_s
        self._expires_s = expires_s
        self._wire: Wire | None = None
        self._known: tuple[CellMember, ...] = ()
        self._heard_at = float("-inf")
        self._warned = False

    def members(self) -> list[CellMember]:
        """Those that were heard of in the last seconds, this one among them, by their names."""
        fresh = time.monotonic() - self._heard_at < self._expires_s
        return list(self._known) if fresh else []

    async def claim_name(self) -> None:
        """Raises `NameTaken` if another process has this name."""
        if self._name is not None:
            await self._name.claim()

    async def run(self) -> None:
        """Until it is cancelled; then it takes itself out."""
        async with asyncio.TaskGroup() as tasks:
            if self._name is not None:
                tasks.create_task(self._name.keep())
            tasks.create_task(self._run())

    async def _run(self) -> None:
        try:
            while True:
                await self._tell(present=True)
                await asyncio.sleep(self._every_s)
        finally:
            # While the store is away there is nobody to tell; what stands there expires.
            if self.members():
                await self._tell(present=False)
            self._close()

    async def _tell(self, *, present: bool) -> None:
        try:
            if self._wire is None:
                address = await self._connector.address()
                self._wire = await self._connector.connected(address, self._lost)
            [answer] = await self._wire.answers([self._command(self._wire, present=present)], _ANSWER_S_MAX)
            self._known, self._heard_at = read(answer), time.monotonic()
        except asyncio.CancelledError:
            # The question is still open, and nothing else can be asked on this connection.
            self._close()
            raise
        except CAUSES as cause:
            # What the store is up to is told by the cell itself.
            log.debug("the addresses of the cell's members are not known: %s", type(cause).__name__)
            self._close()

    def _command(self, wire: Wire, *, present: bool) -> Command:
        value = f"{int(self._leads())} {self._address(wire.local_host)}" if present else ""
        return ("EVAL", _SCRIPT, 1, self._key, self._member, value, self._expires_s * 1_000, MEMBERS_MAX)

    def _address(self, local_host: str | None) -> str:
        """Where others reach this process. `local_host` is None where the store is a file of this machine."""
        host, port = self._admin()
        # Whoever uses a store of this machine is on it.
        beside_store = local_host is None or _is_loopback(local_host)
        if host in _WILDCARDS:
            # Where it listens everywhere, others of the cell reach it as the store does.
            host = local_host or "127.0.0.1"
        if _is_loopback(host) and not beside_store:
            self._warn(host)
            return _NOWHERE
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _warn(self, host: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "admin_listen is on %s, where other machines of the cell cannot ask for requests and verdicts of this "
                "gateway; let it listen on an address of the inner network",
                host,
            )

    def _lost(self, cause: Exception) -> None:
        self._close()

    def _close(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            with suppress(OSError):
                wire.close()


def read(answer: Any) -> tuple[CellMember, ...]:
    """What the store has; what is not as a member would write it is passed over."""
    if not isinstance(answer, list):
        return ()
    texts = [each.decode("ascii", "replace") if isinstance(each, bytes) else "" for each in answer]  # pyright: ignore[reportUnknownVariableType]
    found: list[CellMember] = []
    for name, value in zip(texts[::2], texts[1::2], strict=False):
        told = _VALUE.fullmatch(value)
        if told is not None and _MEMBER.fullmatch(name) and len(found) < MEMBERS_MAX:
            found.append(CellMember(name, "" if told[2] == _NOWHERE else told[2], told[1] == "1"))
    return tuple(sorted(found))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"
