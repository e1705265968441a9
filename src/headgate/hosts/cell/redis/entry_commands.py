"""Commands that add entries to the streams of a cell.

A stream that no process reads is limited in length, and an outbox that no process writes to expires.
"""

from typing import Final
from zlib import crc32

from headgate.hosts.cell.protocol.store import StoreBatch
from headgate.hosts.cell.redis.connection import RedisCommand
from headgate.hosts.cell.redis.keys import CellKeys

INBOX_ENTRIES_MAX: Final = 4_096
OUTBOX_ENTRIES_MAX: Final = 1_024
OUTBOX_EXPIRES_S: Final = 60
_EXPIRY_RENEW_S: Final = 15
_OUTBOXES_MAX: Final = 10_000


class EntryCommands:
    def __init__(self, keys: CellKeys) -> None:
        self._keys = keys
        self._expiries: dict[str, float] = {}
        """Time at which the expiry of each outbox must be renewed, by member."""

    def clear(self) -> None:
        """Forgets the expiry times, because the store may have lost them."""
        self._expiries.clear()

    def build(self, batch: StoreBatch, now_s: float) -> list[RedisCommand]:
        commands: list[RedisCommand] = [
            ("XADD", self._keys.inbox, "MAXLEN", "~", INBOX_ENTRIES_MAX, "*", "e", entry, "c", crc32(entry))
            for entry in batch.inbox
        ]
        for member, entry in batch.outboxes:
            key = self._keys.outbox(member)
            commands.append(("XADD", key, "MAXLEN", "~", OUTBOX_ENTRIES_MAX, "*", "e", entry, "c", crc32(entry)))
            if self._expiries.get(member, 0.0) <= now_s:
                if len(self._expiries) >= _OUTBOXES_MAX:
                    self._expiries.clear()
                self._expiries[member] = now_s + _EXPIRY_RENEW_S
                commands.append(("EXPIRE", key, OUTBOX_EXPIRES_S))
        return commands
