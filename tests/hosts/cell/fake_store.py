"""What is the smallest thing that keeps the promises of a store?

A `FakeServer` stands for the Redis of one cell, and each process has a `FakeStore` around it. It takes the same faults
as a real one: it is killed, comes back empty or with what it kept, is paused and resumed. What a paused one was sent is
lost, as a parcel that is not answered in time. The contract suite (test_store.py) runs on it as on the real ones.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headgate.hosts.cell.protocol.lease import claimed, released
from headgate.hosts.cell.protocol.messages import Lease, Snapshots
from headgate.hosts.cell.protocol.store import Parcel, Receiver
from headgate.model.units import Duration, Instant

PARCEL_S_MAX = 0.5


@dataclass
class Kept:
    """What a server has in its memory."""

    inbox: list[bytes] = field(default_factory=list)
    outboxes: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    lease: Lease | None = None
    snapshot: tuple[Snapshots, bytes] | None = None

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

    def keep(self) -> None:
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
        self._parcel: Parcel | None = None
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
        while self._parcel is not None:
            await asyncio.sleep(0.001)
        self._stopped, self.up = True, False
        self._server.stores.remove(self)

    @property
    def free(self) -> bool:
        return self.up and self._parcel is None

    def lead(self, leading: bool) -> None:
        self._leading, self._inbox_at = leading, None

    def send(self, parcel: Parcel) -> None:
        assert self.free, "a parcel is sent only while the store is free"
        self._parcel = parcel
        sent = [*parcel.inbox, *(entry for _, entry in parcel.outboxes)]
        self.entries_sent += len(sent)
        self.bytes_sent += sum(map(len, sent))
        self._later(self._answer)

    def _later(self, action: Callable[[], None], seconds: float = 0.0) -> None:
        self._loop.call_later(seconds, action)

    # What the server does with a parcel

    def _answer(self) -> None:
        parcel, server = self._parcel, self._server
        if parcel is None or not server.alive:
            return
        if server.paused:
            self._later(self._time_out, PARCEL_S_MAX)
            return
        kept = server.kept
        if self._leading and self._inbox_at is None:
            self._inbox_at = len(kept.inbox)
        self._parcel = None
        self._take(parcel, kept, Instant(int(self._loop.time() * 1e9)))
        if self.free:
            self._receiver.store_free()
        for store in server.stores:
            store.look()

    def _take(self, parcel: Parcel, kept: Kept, now: Instant) -> None:
        if parcel.claim is not None:
            kept.lease = claimed(kept.lease, parcel.claim, now)
        kept.inbox.extend(parcel.inbox)
        for member, entry in parcel.outboxes:
            kept.outboxes[member].append(entry)
        written = parcel.write is not None and (kept.snapshot is None or _order(kept.snapshot) <= _order(parcel.write))
        if written:
            kept.snapshot = parcel.write
        snapshot, lease = kept.snapshot, kept.lease
        if parcel.release is not None:
            kept.lease = released(kept.lease, parcel.release, now)
        if parcel.claim is not None and lease is not None:
            self._receiver.lease_answered(parcel.claim, lease)
        if parcel.write is not None and snapshot is not None:
            self._receiver.snapshot_kept(parcel.write[0], snapshot[0])
        if parcel.read:
            self._receiver.snapshot_read(None if snapshot is None else snapshot[1])

    def _time_out(self) -> None:
        if self._server.paused and self._parcel is not None:
            self.timeouts += 1
            self._parcel = None
            self._change(up=False, problem="the store does not answer in time; it is paused")
        else:
            self._answer()

    # What is read, and whether it is there

    def restarted(self) -> None:
        """What is shorter than what was read is another stream, and is read from its beginning."""
        kept = self._server.kept
        if self._outbox_at is not None and len(kept.outboxes[self._member]) < self._outbox_at:
            self._outbox_at = 0
        if self._inbox_at is not None and len(kept.inbox) < self._inbox_at:
            self._inbox_at = 0
        self.look()

    def lose(self) -> None:
        self._later(self._lose)

    def _lose(self) -> None:
        self._parcel = None
        if not self._stopped:
            self._change(up=False, problem="the store is not there; start it")

    def look(self) -> None:
        self._later(self._look)

    def _look(self) -> None:
        if self._stopped:
            return
        if self._server.paused or not self._server.alive:
            return
        if not self.up:
            self._change(up=True, problem=None)
            self._receiver.store_free()
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


def _order(snapshot: tuple[Snapshots, bytes]) -> tuple[int, int]:
    return snapshot[0].epoch, snapshot[0].number
