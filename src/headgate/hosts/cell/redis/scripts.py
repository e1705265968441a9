"""What does Redis do at once and undivided?

The lease is claimed and given up exactly as `lease.claimed` and `lease.released` say, by Redis' own clock, in
milliseconds; a snapshot is put where no newer one is, and over what is none. Each is a script, loaded with every new
connection and called by its digest; a store that has forgotten it meanwhile is sent the whole.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from headgate.hosts.cell.protocol.lease import Claim
from headgate.hosts.cell.protocol.messages import Epoch, Lease, Snapshots
from headgate.hosts.cell.redis.wire import Command
from headgate.model.units import MILLISECOND, Instant


@dataclass(frozen=True, slots=True)
class Script:
    text: str
    digest: str

    def call(self, key: bytes, *arguments: str | bytes | int) -> Command:
        return ("EVALSHA", self.digest, 1, key, *arguments)

    def whole(self, call: Command) -> Command:
        """The same call, for a store that does not know the script."""
        return ("EVAL", self.text, *call[2:])


def _script(text: str) -> Script:
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


_NUMBER_MAX: Final = 1 << 52
"""Scripts compare numbers as floats; beyond this two in a row may be the same."""

_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = redis.call('HMGET', KEYS[1], 'number', 'id', 'expires_ms')
"""

CLAIM: Final = _script(
    _NOW
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
    _NOW
    + """
if held[1] == ARGV[1] and held[2] == ARGV[2] then
    redis.call('HSET', KEYS[1], 'expires_ms', string.format('%.0f', now))
end
return 1
"""
)

WRITE: Final = _script("""
local held = redis.call('HMGET', KEYS[1], 'epoch', 'number')
local epoch, number = tonumber(held[1] or '') or -1, tonumber(held[2] or '') or -1
if epoch > tonumber(ARGV[1]) or (epoch == tonumber(ARGV[1]) and number > tonumber(ARGV[2])) then
    return held
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'number', ARGV[2], 'bytes', ARGV[3])
return {ARGV[1], ARGV[2]}
""")

LOADS: Final = tuple(("SCRIPT", "LOAD", each.text) for each in (CLAIM, RELEASE, WRITE))
SCRIPTS: Final = {each.digest: each for each in (CLAIM, RELEASE, WRITE)}


def claim(key: bytes, asked: Claim) -> Command:
    instead = asked.instead_of
    own: tuple[int | str, int | str] = ("", "") if instead is None else (instead.number, instead.id)
    return CLAIM.call(key, asked.epoch.number, asked.epoch.id, asked.lasts_ns // MILLISECOND, *own)


def lease(answer: Any) -> Lease:
    """Raises `ValueError`, `TypeError` or `AttributeError` where the store has something else there."""
    number, epoch_id, expires_ms = answer
    if int(number) > _NUMBER_MAX:
        raise ValueError("an epoch that the store cannot count beyond")
    return Lease(Epoch(int(number), epoch_id.decode()), Instant(int(expires_ms) * MILLISECOND))


def release(key: bytes, epoch: Epoch) -> Command:
    return RELEASE.call(key, epoch.number, epoch.id)


def write(key: bytes, at: Snapshots, written: bytes) -> Command:
    return WRITE.call(key, at.epoch, at.number, written)


def kept(answer: Any) -> Snapshots:
    """The snapshot that the store has. Raises `ValueError` or `TypeError` if the answer is not one."""
    epoch, number = map(int, answer)
    if max(epoch, number) > _NUMBER_MAX:
        raise ValueError("a number that the store cannot count beyond")
    return Snapshots(epoch, number)
