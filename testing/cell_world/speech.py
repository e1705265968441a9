"""Effects of faults on the entries that a simulated process writes and reads."""

from random import Random

from headgate.hosts.cell.protocol.messages import VERSION
from testing.cell_world.corruption import lying, mangled, of_version, version_of
from testing.cell_world.faults import Kind
from testing.cell_world.store import Way


class Speech:
    def __init__(self, way: Way, random: Random) -> None:
        self._way, self._random = way, random

    def carried(self, written: bytes) -> bytes:
        """The entry as it arrives, possibly damaged in transit."""
        damage = self._way.concerned(Kind.DAMAGE)
        return mangled(written, self._random) if damage and self._random.randrange(100) < damage.degree else written

    def reads(self, written: bytes) -> bool:
        """Whether the version of this process can read the version of an entry."""
        skew = self._way.concerned(Kind.SKEW)
        return skew is None or abs(version_of(written) - VERSION - skew.degree) <= 1

    def as_written(self, written: bytes) -> bytes:
        skew = self._way.concerned(Kind.SKEW)
        return written if skew is None else of_version(written, VERSION + skew.degree)

    def as_said(self, written: bytes) -> bytes:
        lies = self._way.concerned(Kind.LIES)
        lied = lies is not None and self._random.randrange(100) < lies.degree
        return self.as_written(lying(written, self._random, head=False) if lied else written)
