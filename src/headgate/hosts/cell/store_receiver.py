"""Receiver of entries, leases and snapshots from the cell's store.

It decodes each entry and passes it to the node with the current time. An entry that this version cannot decode is
skipped and counted. If a later incarnation of this member appears repeatedly, a second process is using the same name.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from headgate.hosts.cell.command_executor import CommandExecutor
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.protocol.codec import (
    InvalidMemberEntry,
    InvalidSchedulerEntry,
    UnreadableEntry,
    decode_member_entry,
    decode_scheduler_entry,
    decode_snapshot,
)
from headgate.hosts.cell.protocol.lease import Claim
from headgate.hosts.cell.protocol.messages import Lease, SnapshotId
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant
from headgate.ports.clock import Clock

log = logging.getLogger("headgate")

_NAME_LOG_INTERVAL_NS = Duration(10 * SECOND)
"""Minimum interval between log messages about a second process with this name."""

_REJECTION_LOG_INTERVAL_NS = Duration(10 * SECOND)
"""Minimum interval between log messages about rejected reports."""

_TURN_NS_MAX = Duration(20 * MILLISECOND)
"""Time after which the remaining entries wait for the next turn of the event loop. The reports of thousands of requests
take longer, and the lease must be renewed and the members answered meanwhile."""

_WAITING_ENTRIES_MAX = 1_024
"""Maximum number of entries that wait for the next turn. Beyond it, the event loop is blocked and nothing is read."""


class StoreReceiver:
    """Implementation of `protocol.store.Receiver`."""

    def __init__(self, node: Node, clock: Clock, executor: CommandExecutor, update: Callable[[], None]) -> None:
        """`update` is called after every input that may have made something due."""
        self._node, self._clock = node, clock
        self._decisions, self._look = executor, update
        self._inbox: deque[bytes] = deque()
        """Entries that wait for the next turn of the event loop."""
        self._last_read: bytes | None = None
        """Last snapshot read, in encoded form."""
        self.unreadable_entries = 0
        """Number of entries that this version could not decode."""
        self._incarnation = node.member.incarnation
        self._times_superseded = 0
        """Number of later incarnations of this member that have appeared."""
        self._rejection_logged_at: Instant | None = None
        self._name_taken_at: Instant | None = None
        """Time at which a second process with this name was last logged."""

    def from_outbox(self, entries: list[bytes]) -> None:
        for written in entries:
            try:
                entry = decode_scheduler_entry(written)
            except UnreadableEntry as unread:
                self._count_unreadable(unread)
                if isinstance(unread, InvalidSchedulerEntry):
                    self._decisions.notify(self._node.reject_scheduler_entry, unread.head)
            else:
                self._decisions.decide(None, partial(self._node.from_scheduler, entry))
        if self._node.member.incarnation != self._incarnation:
            self._note_newer_incarnation()
        self._look()

    def from_inbox(self, entries: list[bytes]) -> None:
        are_waiting = bool(self._inbox)
        self._inbox += entries
        if not are_waiting or len(self._inbox) > _WAITING_ENTRIES_MAX:
            self._handle_waiting(keep=not are_waiting)

    def _handle_waiting(self, *, keep: bool = True) -> None:
        """Handles waiting entries until this turn of the event loop has taken long enough.

        Without `keep`, the next turn is scheduled already.
        """
        until = self._clock.now() + _TURN_NS_MAX
        while self._inbox:
            self._from_member(self._inbox.popleft())
            if self._clock.now() >= until and len(self._inbox) <= _WAITING_ENTRIES_MAX:
                break
        self._log_rejections()
        if self._inbox and keep:
            asyncio.get_running_loop().call_soon(self._handle_waiting)
        self._look()

    def _from_member(self, written: bytes) -> None:
        try:
            entry = decode_member_entry(written)
        except UnreadableEntry as unread:
            self._count_unreadable(unread)
            if isinstance(unread, InvalidMemberEntry):
                self._decisions.notify(self._node.reject_member_entry, unread.head, str(unread))
        else:
            # Each entry is handled with the current time, because the lease may end in between.
            self._decisions.notify(self._node.from_member, entry)

    def lease_received(self, claim: Claim, lease: Lease) -> None:
        self._decisions.notify(self._node.handle_lease, claim, lease)
        self._look()

    def snapshot_stored(self, at: SnapshotId, kept: SnapshotId) -> None:
        self._decisions.notify(self._node.handle_stored_snapshot, at, kept)
        self._look()

    def snapshot_read(self, written: bytes | None) -> None:
        snapshot = None
        if written is not None and written != self._last_read:
            # Most reads return the snapshot that was read before.
            self._last_read = written
            try:
                snapshot = decode_snapshot(written)
            except UnreadableEntry as unread:
                self._count_unreadable(unread)
        self._decisions.notify(self._node.handle_read_snapshot, snapshot)
        self._look()

    def store_idle(self) -> None:
        self._look()

    def store_changed(self, up: bool, problem: str | None) -> None:  # noqa: FBT001  The state is the argument.
        if up:
            log.info("the cell's store is responding")
        else:
            log.warning("the cell's store is unavailable: %s", problem)
        self._look()

    def _note_newer_incarnation(self) -> None:
        """Handles a later incarnation of this member.

        The first one may mean that this machine's clock was set back. A second one means that another process has this
        name.
        """
        self._incarnation = self._node.member.incarnation
        self._times_superseded += 1
        now, told_at = self._clock.now(), self._name_taken_at
        if self._times_superseded > 1 and (told_at is None or now - told_at >= _NAME_LOG_INTERVAL_NS):
            self._name_taken_at = now
            log.error("%s", self.name_problem)

    def _log_rejections(self) -> None:
        """Logs rejections by this process's scheduler at a limited rate."""
        for complaint in self._node.pop_rejections():
            now = self._clock.now()
            if self._rejection_logged_at is None or now - self._rejection_logged_at >= _REJECTION_LOG_INTERVAL_NS:
                self._rejection_logged_at = now
                log.warning("%s", complaint)

    def _count_unreadable(self, unread: UnreadableEntry) -> None:
        self.unreadable_entries += 1
        if self.unreadable_entries == 1:
            log.warning("skipped a cell entry: %s; check that all processes run adjacent versions", unread)

    @property
    def name_problem(self) -> str | None:
        """Problem and next step if two processes use the same name, or None."""
        if self._name_taken_at is None or self._clock.now() - self._name_taken_at > 2 * _NAME_LOG_INTERVAL_NS:
            return None
        name = self._node.member.name
        return (
            f'another process in the cell is also named "{name}", so each overwrites changes made by the other; set a '
            "different cell.member_name for one of them and restart it"
        )
