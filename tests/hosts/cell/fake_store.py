"""In-memory fake of the cell's store.

A `FakeServer` replaces one cell's Redis server, and each process uses its own `FakeStore`. The server supports the same
faults as a real one: it can be killed, restarted empty or with saved data, paused and resumed. A batch sent to a paused
server times out and is lost. The contract tests in protocol/test_store.py cover the fake and the real stores.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headgate.hosts.cell.protocol.lease import claim_lease, release_lease
from headgate.hosts.cell.protocol.messages import Lease, SnapshotId
from headgate.hosts.cell.protocol.store import Receiver, StoreBatch
from headgate.model.units import Duration, Instant

BATCH_S_MAX = 0.5


@dataclass
class Kept:
    """A server's data."""

    inbox: list[bytes] = field(default_factory=list)
    outboxes: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    lease: Lease | None = None
    snapshot: tuple[SnapshotId, bytes] | None = None

    def copy(self) -> "Kept":
        outboxes = defaultdict(list, {name: list(entries) for name, entries in self.outboxes.items()})
        return replace(self, inbox=list(self.inbox), outboxes=outboxes)


class FakeServer:
    def __init__(self) -> None:
        self.kept = Kept()
        self._saved = Kept()
        self.alive = True
        self.paused = False
        self.stores: list[FakeStore] = []

    def kill(self) -> None:
        self.alive = False
        for store in self.stores:
            store.lose()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        for store in self.stores:
            store.look()

    def save_snapshot(self) -> None:
        self._saved = self.kept.copy()

    def restart(self, *, empty: bool = True) -> None:
        self.kill()
        self.kept = Kept() if empty else self._saved.copy()
        self.alive, self.paused = True, False
        for store in self.stores:
            store.restarted()


class FakeStore:
    def __init__(self, server: FakeServer, member: str) -> None:
        self._server = server
        self._member = member
        self._batch: StoreBatch | None = None
        self._leading = False
        self._inbox_at: int | None = None
        self._outbox_at: int | None = None
        self._stopped = False
        self.up = False
        self.problem: str | None = None
        self.round_trip_ns = Duration(0)
        self.entries_sent = self.bytes_sent = self.entries_read = self.bytes_read = 0
        self.reconnects = self.timeouts = 0

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._server.stores.append(self)
        self._outbox_at = len(self._server.kept.outboxes[self._member])
        self._later(self.look)

    async def stop(self) -> None:
        while self._batch is not None:
            await asyncio.sleep(0.001)
        self._stopped, self.up = True, False
        self._server.stores.remove(self)

    @property
    def is_idle(self) -> bool:
        return self.up and self._batch is None

    def set_leading(self, leading: bool) -> None:
        self._leading, self._inbox_at = leading, None

    def send(self, batch: StoreBatch) -> None:
        assert self.is_idle, "the store is not idle"
        self._batch = batch
        sent = [*batch.inbox, *(entry for _, entry in batch.outboxes)]
        self.entries_sent += len(sent)
        self.bytes_sent += sum(map(len, sent))
        self._later(self._answer)

    def _later(self, action: Callable[[], None], seconds: float = 0.0) -> None:
        self._loop.call_later(seconds, action)

    # Processing a batch

    def _answer(self) -> None:
        batch, server = self._batch, self._server
        if batch is None or not server.alive:
            return
        if server.paused:
            self._later(self._time_out, BATCH_S_MAX)
            return
        kept = server.kept
        if self._leading and self._inbox_at is None:
            self._inbox_at = len(kept.inbox)
        self._batch = None
        self._take(batch, kept, Instant(int(self._loop.time() * 1e9)))
        if self.is_idle:
            self._receiver.store_idle()
        for store in server.stores:
            store.look()

    def _take(self, batch: StoreBatch, kept: Kept, now: Instant) -> None:
        if batch.claim is not None:
            kept.lease = claim_lease(kept.lease, batch.claim, now)
        kept.inbox.extend(batch.inbox)
        for member, entry in batch.outboxes:
            kept.outboxes[member].append(entry)
        written = batch.snapshot is not None and (
            kept.snapshot is None or _order(kept.snapshot) <= _order(batch.snapshot)
        )
        if written:
            kept.snapshot = batch.snapshot
        snapshot, lease = kept.snapshot, kept.lease
        if batch.release is not None:
            kept.lease = release_lease(kept.lease, batch.release, now)
        if batch.claim is not None and lease is not None:
            self._receiver.lease_received(batch.claim, lease)
        if batch.snapshot is not None and snapshot is not None:
            self._receiver.snapshot_stored(batch.snapshot[0], snapshot[0])
        if batch.read_snapshot:
            self._receiver.snapshot_read(None if snapshot is None else snapshot[1])

    def _time_out(self) -> None:
        if self._server.paused and self._batch is not None:
            self.timeouts += 1
            self._batch = None
            self._change(up=False, problem="the store did not respond in time; it may be paused")
        else:
            self._answer()

    # Reading and availability

    def restarted(self) -> None:
        """Rewinds the read position of a stream that is shorter than before, because it is a new stream."""
        kept = self._server.kept
        if self._outbox_at is not None and len(kept.outboxes[self._member]) < self._outbox_at:
            self._outbox_at = 0
        if self._inbox_at is not None and len(kept.inbox) < self._inbox_at:
            self._inbox_at = 0
        self.look()

    def lose(self) -> None:
        self._later(self._lose)

    def _lose(self) -> None:
        self._batch = None
        if not self._stopped:
            self._change(up=False, problem="the store is not running; start it")

    def look(self) -> None:
        self._later(self._look)

    def _look(self) -> None:
        if self._stopped:
            return
        if self._server.paused or not self._server.alive:
            return
        if not self.up:
            self._change(up=True, problem=None)
            self._receiver.store_idle()
        outbox = self._server.kept.outboxes[self._member]
        if self._outbox_at is not None and len(outbox) > self._outbox_at:
            entries, self._outbox_at = outbox[self._outbox_at :], len(outbox)
            self._count(entries)
            self._receiver.from_outbox(entries)
        inbox = self._server.kept.inbox
        if self._leading and self._inbox_at is not None and len(inbox) > self._inbox_at:
            entries, self._inbox_at = inbox[self._inbox_at :], len(inbox)
            self._count(entries)
            self._receiver.from_inbox(entries)

    def _count(self, entries: list[bytes]) -> None:
        self.entries_read += len(entries)
        self.bytes_read += sum(map(len, entries))

    def _change(self, *, up: bool, problem: str | None) -> None:
        if (up, problem) != (self.up, self.problem):
            self.reconnects += up and self.problem is not None
            self.up, self.problem = up, problem
            self._receiver.store_changed(up, problem)


def _order(snapshot: tuple[SnapshotId, bytes]) -> tuple[int, int]:
    return snapshot[0].epoch, snapshot[0].number
