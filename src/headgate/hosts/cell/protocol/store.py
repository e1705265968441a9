"""What carries entries between the processes of a cell, and what may be asked of it?

All that has to go out goes as one `Parcel`, one at a time: a store keeps no queue. While it is slow or away nothing is
sent, and whoever has something to say makes its parcel, of what is worth saying by then, when it is told that the store
is free. What a parcel carried may be lost, and may arrive twice: the protocol sees to both. What a store owes is that
it never keeps anybody waiting: `send` returns at once, every step has a time limit, and what is not answered in time is
lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headgate.hosts.cell.protocol.lease import Claim
from headgate.hosts.cell.protocol.messages import Epoch, Lease, Snapshots
from headgate.model.units import Duration


@dataclass(frozen=True, slots=True)
class Parcel:
    """All that goes out at once."""

    inbox: Sequence[bytes] = ()
    """Entries for whoever is the scheduler."""
    outboxes: Sequence[tuple[str, bytes]] = ()
    """Entries for each of these members."""
    claim: Claim | None = None
    """Answered by `lease_answered`, with what the store has then."""
    release: Epoch | None = None
    """A lease that is given up; one that is another's stays."""
    write: tuple[Snapshots, bytes] | None = None
    """A snapshot, to be put where no newer one is."""
    read: bool = False
    """Whether the last snapshot is to be read, for `snapshot_read`."""


class Receiver(Protocol):
    """What a store tells, on the event loop. None of these may raise."""

    def from_outbox(self, entries: list[bytes]) -> None:
        """What schedulers say to this member, in the order in which the store has it."""
        ...

    def from_inbox(self, entries: list[bytes]) -> None:
        """What members say to the scheduler, while this process is it."""
        ...

    def lease_answered(self, claim: Claim, lease: Lease) -> None: ...

    def snapshot_kept(self, at: Snapshots, kept: Snapshots) -> None:
        """The store was asked to write `at` and has `kept` now: the same one, or a newer one."""
        ...

    def snapshot_read(self, written: bytes | None) -> None: ...

    def store_free(self) -> None:
        """The next parcel can go: the last was answered, or the store is there again after it was lost."""
        ...

    def store_changed(self, up: bool, problem: str | None) -> None:  # noqa: FBT001  A state, told as it is.
        """The store is there or away, or what keeps it away has another name."""
        ...


class Store(Protocol):
    @property
    def up(self) -> bool:
        """Whether the store answers."""
        ...

    @property
    def problem(self) -> str | None:
        """What keeps it away, and the next step; without any secret."""
        ...

    @property
    def round_trip_ns(self) -> Duration:
        """The slowest of the last two seconds, including a parcel that is not answered yet."""
        ...

    @property
    def entries_sent(self) -> int: ...

    @property
    def bytes_sent(self) -> int: ...

    @property
    def entries_read(self) -> int: ...

    @property
    def bytes_read(self) -> int: ...

    @property
    def reconnects(self) -> int:
        """How often connections were made anew."""
        ...

    @property
    def timeouts(self) -> int:
        """How often an answer did not come in time."""
        ...

    def start(self, receiver: Receiver) -> None:
        """Begin, on the running event loop. Whether the store is there is told to the receiver."""
        ...

    @property
    def free(self) -> bool:
        """Whether `send` may be called: the store is there and nothing is under way."""
        ...

    def send(self, parcel: Parcel) -> None:
        """Returns at once. `store_free` follows when it was answered, or when the store is back after it was lost."""
        ...

    def lead(self, leading: bool) -> None:  # noqa: FBT001  A state, told as it is.
        """Whether the inbox is to be read, from its present end on."""
        ...

    async def stop(self) -> None: ...
