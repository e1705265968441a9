"""How are entries added to the streams of a cell?

A stream that nobody reads is cut off at a length, and an outbox that nobody writes to any more expires.
"""

from typing import Final
from zlib import crc32

from headgate.hosts.cell.protocol.store import Parcel
from headgate.hosts.cell.redis.keys import CellKeys
from headgate.hosts.cell.redis.wire import Command

INBOX_ENTRIES_MAX: Final = 4_096
OUTBOX_ENTRIES_MAX: Final = 1_024
OUTBOX_EXPIRES_S: Final = 60
_EXPIRY_AGAIN_S: Final = 15
_OUTBOXES_MAX: Final = 10_000


class EntryCommands:
    def __init__(self, keys: CellKeys) -> None:
        self._keys = keys
        self._expiries: dict[str, float] = {}
        """When the expiry of each outbox is to be put off again."""

    def clear(self) -> None:
        """The store may have forgotten the expiries."""
        self._expiries.clear()

    def of(self, parcel: Parcel, now_s: float) -> list[Command]:
        commands: list[Command] = [
            ("XADD", self._keys.inbox, "MAXLEN", "~", INBOX_ENTRIES_MAX, "*", "e", entry, "c", crc32(entry))
            for entry in parcel.inbox
        ]
        for member, entry in parcel.outboxes:
            key = self._keys.outbox(member)
            commands.append(("XADD", key, "MAXLEN", "~", OUTBOX_ENTRIES_MAX, "*", "e", entry, "c", crc32(entry)))
            if self._expiries.get(member, 0.0) <= now_s:
                if len(self._expiries) >= _OUTBOXES_MAX:
                    self._expiries.clear()
                self._expiries[member] = now_s + _EXPIRY_AGAIN_S
                commands.append(("EXPIRE", key, OUTBOX_EXPIRES_S))
        return commands
