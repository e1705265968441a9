"""Lua scripts that Redis runs atomically.

The lease is claimed and released as in `protocol/lease.py`, by Redis' clock in milliseconds. A snapshot is written
unless the store has a newer one; invalid data is overwritten. The scripts are loaded with every new connection and
called by their digest. If the store has lost a script, its complete text is sent.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from headgate.hosts.cell.protocol.lease import Claim
from headgate.hosts.cell.protocol.messages import Epoch, Lease, SnapshotId
from headgate.hosts.cell.redis.connection import RedisCommand
from headgate.model.units import MILLISECOND, Instant


@dataclass(frozen=True, slots=True)
class LuaScript:
    text: str
    digest: str

    def call(self, key: bytes, *arguments: str | bytes | int) -> RedisCommand:
        return ("EVALSHA", self.digest, 1, key, *arguments)

    def eval_call(self, call: RedisCommand) -> RedisCommand:
        """Returns the equivalent call for a store that does not have the script."""
        return ("EVAL", self.text, *call[2:])


def _script(text: str) -> LuaScript:
    return LuaScript(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


_NUMBER_MAX: Final = 1 << 52
"""Largest number allowed. Scripts compare numbers as floats, which are not exact beyond it."""

_READ_LEASE: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = redis.call('HMGET', KEYS[1], 'number', 'id', 'expires_ms')
"""

CLAIM: Final = _script(
    _READ_LEASE
    + """
if held[1] and not (held[1] == ARGV[1] and held[2] == ARGV[2]) then
    local left = tonumber(held[3]) - now
    local free = left <= 0 or left > 2 * ARGV[3] or (held[1] == ARGV[4] and held[2] == ARGV[5])
    if not (free and tonumber(ARGV[1]) > tonumber(held[1])) then
        return held
    end
end
local expires = string.format('%.0f', now + ARGV[3])
redis.call('HSET', KEYS[1], 'number', ARGV[1], 'id', ARGV[2], 'expires_ms', expires)
return {ARGV[1], ARGV[2], expires}
"""
)

RELEASE: Final = _script(
    _READ_LEASE
    + """
if held[1] == ARGV[1] and held[2] == ARGV[2] then
    redis.call('HSET', KEYS[1], 'expires_ms', string.format('%.0f', now))
end
return 1
"""
)

WRITE_SNAPSHOT: Final = _script("""
local held = redis.call('HMGET', KEYS[1], 'epoch', 'number')
local epoch, number = tonumber(held[1] or '') or -1, tonumber(held[2] or '') or -1
if epoch > tonumber(ARGV[1]) or (epoch == tonumber(ARGV[1]) and number > tonumber(ARGV[2])) then
    return held
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'number', ARGV[2], 'bytes', ARGV[3])
return {ARGV[1], ARGV[2]}
""")

LOAD_COMMANDS: Final = tuple(("SCRIPT", "LOAD", each.text) for each in (CLAIM, RELEASE, WRITE_SNAPSHOT))
SCRIPTS: Final = {each.digest: each for each in (CLAIM, RELEASE, WRITE_SNAPSHOT)}


def claim_command(key: bytes, asked: Claim) -> RedisCommand:
    instead = asked.replaces
    own: tuple[int | str, int | str] = ("", "") if instead is None else (instead.number, instead.id)
    return CLAIM.call(key, asked.epoch.number, asked.epoch.id, asked.duration_ns // MILLISECOND, *own)


def parse_lease(answer: Any) -> Lease:
    """Parses a lease. Raises `ValueError`, `TypeError` or `AttributeError` if the store has other data there."""
    number, epoch_id, expires_ms = answer
    if int(number) > _NUMBER_MAX:
        raise ValueError("the epoch number is too large for the store")
    return Lease(Epoch(int(number), epoch_id.decode()), Instant(int(expires_ms) * MILLISECOND))


def release_command(key: bytes, epoch: Epoch) -> RedisCommand:
    return RELEASE.call(key, epoch.number, epoch.id)


def write_snapshot_command(key: bytes, at: SnapshotId, written: bytes) -> RedisCommand:
    return WRITE_SNAPSHOT.call(key, at.epoch, at.number, written)


def parse_snapshot_id(answer: Any) -> SnapshotId:
    """Parses the id of the stored snapshot. Raises `ValueError` or `TypeError` if the reply is invalid."""
    epoch, number = map(int, answer)
    if max(epoch, number) > _NUMBER_MAX:
        raise ValueError("the snapshot number is too large for the store")
    return SnapshotId(epoch, number)
