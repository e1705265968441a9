"""Effects of faults on the entries that a simulated process writes and reads."""

from random import Random

from headgate.hosts.cell.protocol.messages import VERSION
from testing.cell_world.corruption import of_version, version_of, with_damaged_bytes, with_false_content
from testing.cell_world.faults import Kind
from testing.cell_world.store import StoreLink


class EntryFaults:
    def __init__(self, way: StoreLink, random: Random) -> None:
        self._way, self._random = way, random

    def in_transit(self, written: bytes) -> bytes:
        """The entry as it arrives, possibly damaged in transit."""
        damage = self._way.active_fault(Kind.DAMAGE)
        return (
            with_damaged_bytes(written, self._random)
            if damage and self._random.randrange(100) < damage.degree
            else written
        )

    def can_read(self, written: bytes) -> bool:
        """Whether this process can read the version of an entry."""
        skew = self._way.active_fault(Kind.SKEW)
        return skew is None or abs(version_of(written) - VERSION - skew.degree) <= 1

    def as_written(self, written: bytes) -> bytes:
        skew = self._way.active_fault(Kind.SKEW)
        return written if skew is None else of_version(written, VERSION + skew.degree)

    def as_sent(self, written: bytes) -> bytes:
        lies = self._way.active_fault(Kind.LIES)
        lied = lies is not None and self._random.randrange(100) < lies.degree
        return self.as_written(with_false_content(written, self._random, head=False) if lied else written)
