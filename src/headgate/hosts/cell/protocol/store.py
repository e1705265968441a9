"""Interface of the store that transports entries between the processes of a cell.

Everything is sent in batches (`StoreBatch`), one at a time. A store has no queue. While the store is slow or
unavailable, nothing is sent. When it is idle again, the process builds a new batch from its current state. A batch may
be lost or delivered twice; the protocol handles both cases. A store never blocks: `send` returns immediately, every
step has a timeout, and a batch without a timely reply counts as lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headgate.hosts.cell.protocol.lease import Claim
from headgate.hosts.cell.protocol.messages import Epoch, Lease, SnapshotId
from headgate.model.units import Duration


@dataclass(frozen=True, slots=True)
class StoreBatch:
    """Everything that is sent in one round trip."""

    inbox: Sequence[bytes] = ()
    """Entries for the scheduler."""
    outboxes: Sequence[tuple[str, bytes]] = ()
    """Entries for members, with the member's name."""
    claim: Claim | None = None
    """Claim of the lease. `lease_received` receives the lease as the store has it after the claim."""
    release: Epoch | None = None
    """Lease to release. A lease from another epoch is left unchanged."""
    snapshot: tuple[SnapshotId, bytes] | None = None
    """Snapshot to write unless the store has a newer one."""
    read_snapshot: bool = False
    """Whether to read the last snapshot, for `snapshot_read`."""


class Receiver(Protocol):
    """Receives data from a store on the event loop. None of the methods may raise."""

    def from_outbox(self, entries: list[bytes]) -> None:
        """Receives entries from schedulers for this member, in the store's order."""
        ...

    def from_inbox(self, entries: list[bytes]) -> None:
        """Receives entries from members while this process is the scheduler."""
        ...

    def lease_received(self, claim: Claim, lease: Lease) -> None: ...

    def snapshot_stored(self, at: SnapshotId, kept: SnapshotId) -> None:
        """Receives the result of writing `at`. The store now has `kept`, which is the same snapshot or a newer one."""
        ...

    def snapshot_read(self, written: bytes | None) -> None: ...

    def store_idle(self) -> None:
        """Called when the next batch can be sent, because the last one is complete or the store is available again."""
        ...

    def store_changed(self, up: bool, problem: str | None) -> None:  # noqa: FBT001  The state is the argument.
        """Called when the store becomes available or unavailable, or when the problem changes."""
        ...


class Store(Protocol):
    @property
    def up(self) -> bool:
        """Whether the store responds."""
        ...

    @property
    def problem(self) -> str | None:
        """Why the store is unavailable, with the next step. Contains no secrets."""
        ...

    @property
    def round_trip_ns(self) -> Duration:
        """Slowest round trip in the last two seconds, including a batch that has no reply yet."""
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
        """Number of reconnections."""
        ...

    @property
    def timeouts(self) -> int:
        """Number of replies that did not arrive in time."""
        ...

    def start(self, receiver: Receiver) -> None:
        """Starts on the running event loop. The receiver is notified when the store becomes available."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether `send` may be called: the store is available and no batch is in flight."""
        ...

    def send(self, batch: StoreBatch) -> None:
        """Sends a batch without waiting. `store_idle` follows when it is completed or the store is available again."""
        ...

    def set_leading(self, leading: bool) -> None:  # noqa: FBT001  The state is the argument.
        """Sets whether the inbox is read, starting at its current end."""
        ...

    async def stop(self) -> None: ...
