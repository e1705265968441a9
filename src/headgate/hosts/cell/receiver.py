"""What does a process of a cell do with what the store tells it?

It decodes each entry and puts it before the node at its own moment. An entry that this version cannot read is passed
over and counted. A later incarnation of this member that turns up again and again is a second process of the same name.
"""

import logging
from collections.abc import Callable

from headgate.hosts.cell.decisions import Decisions
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.protocol.codec import (
    Unintelligible,
    UntrustedMember,
    UntrustedScheduler,
    decoded_snapshot,
    member_entry,
    scheduler_entry,
)
from headgate.hosts.cell.protocol.lease import Claim
from headgate.hosts.cell.protocol.messages import Lease, Snapshots
from headgate.model.units import SECOND, Duration, Instant
from headgate.ports.clock import Clock

log = logging.getLogger("headgate")

_TAKEN_AGAIN_NS = Duration(10 * SECOND)
"""That another process has our name is said so often at most, for as long as it does."""

_COMPLAIN_AGAIN_NS = Duration(10 * SECOND)
"""At most one rejected report is logged in this time."""


class StoreReceiver:
    """Implements `protocol.store.Receiver`."""

    def __init__(self, node: Node, clock: Clock, decisions: Decisions, look: Callable[[], None]) -> None:
        """`look` is called after everything that may have made something due."""
        self._node, self._clock = node, clock
        self._decisions, self._look = decisions, look
        self._last_read: bytes | None = None
        """The last snapshot, as it was written."""
        self.unintelligible = 0
        """Entries that this version could not read."""
        self._incarnation = node.member.incarnation
        self._outlived = 0
        """How often a later life of this member turned up than this one."""
        self._complained_at: Instant | None = None
        self._taken_at: Instant | None = None
        """When another process last spoke by our name."""

    def from_outbox(self, entries: list[bytes]) -> None:
        for written in entries:
            try:
                entry = scheduler_entry(written)
            except Unintelligible as unread:
                self._unread(unread)
                if isinstance(unread, UntrustedScheduler):
                    self._decisions.hear(self._node.refuse_scheduler, unread.head)
            else:
                self._decisions.decide(None, lambda now, entry=entry: self._node.from_scheduler(entry, now))
        if self._node.member.incarnation != self._incarnation:
            self._outlive()
        self._look()

    def from_inbox(self, entries: list[bytes]) -> None:
        for written in entries:
            try:
                entry = member_entry(written)
            except Unintelligible as unread:
                self._unread(unread)
                if isinstance(unread, UntrustedMember):
                    self._decisions.hear(self._node.refuse_member, unread.head, str(unread))
            else:
                # Each at its own moment: whether the lease still lasts is asked by it.
                self._decisions.hear(self._node.from_member, entry)
        self._complain()
        self._look()

    def lease_answered(self, claim: Claim, lease: Lease) -> None:
        self._decisions.hear(self._node.lease_answered, claim, lease)
        self._look()

    def snapshot_kept(self, at: Snapshots, kept: Snapshots) -> None:
        self._decisions.hear(self._node.snapshot_kept, at, kept)
        self._look()

    def snapshot_read(self, written: bytes | None) -> None:
        snapshot = None
        if written is not None and written != self._last_read:
            # Most reads find what was read before.
            self._last_read = written
            try:
                snapshot = decoded_snapshot(written)
            except Unintelligible as unread:
                self._unread(unread)
        self._decisions.hear(self._node.snapshot_read, snapshot)
        self._look()

    def store_free(self) -> None:
        self._look()

    def store_changed(self, up: bool, problem: str | None) -> None:  # noqa: FBT001  A state, told as it is.
        if up:
            log.info("the store of the cell answers")
        else:
            log.warning("the store of the cell is away: %s", problem)
        self._look()

    def _outlive(self) -> None:
        """Once, the clock of this machine was put back. Whoever is outlived again has a twin that does the same."""
        self._incarnation = self._node.member.incarnation
        self._outlived += 1
        now, told_at = self._clock.now(), self._taken_at
        if self._outlived > 1 and (told_at is None or now - told_at >= _TAKEN_AGAIN_NS):
            self._taken_at = now
            log.error("%s", self.name_problem)

    def _complain(self) -> None:
        """Logs rejections by the scheduler of this process, at a limited rate."""
        for complaint in self._node.take_complaints():
            now = self._clock.now()
            if self._complained_at is None or now - self._complained_at >= _COMPLAIN_AGAIN_NS:
                self._complained_at = now
                log.warning("%s", complaint)

    def _unread(self, unread: Unintelligible) -> None:
        self.unintelligible += 1
        if self.unintelligible == 1:
            log.warning("an entry of the cell was passed over: %s; do all processes run versions one apart?", unread)

    @property
    def name_problem(self) -> str | None:
        """What is wrong where two processes have one name, and the next step."""
        if self._taken_at is None or self._clock.now() - self._taken_at > 2 * _TAKEN_AGAIN_NS:
            return None
        name = self._node.member.name
        return (
            f'another process of the cell is called "{name}" too, so each undoes what the other says; give one '
            "of them another cell.member in its configuration, and restart it"
        )
