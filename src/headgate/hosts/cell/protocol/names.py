"""Decides which of several processes has a member name.

`claimed_name` is the store's part; the store runs it atomically. `NameView` is the process's part. A killed process no
longer renews its entry, so its successor gets the name within one lease. A renewed entry belongs to a live process, and
no other process gets the name.

An entry of another incarnation proves nothing by itself: after a failover the store may return the entry of a process
that is gone. Only a renewed entry counts.
"""

from typing import Final

from headgate.model.message import message
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, after

NAME_LEASE_NS: Final = Duration(2 * SECOND)
NAME_RENEW_NS: Final = Duration(500 * MILLISECOND)
NAME_LOOK_NS: Final = Duration(100 * MILLISECOND)
"""Time between two reads of another process's entry."""
NAME_ANSWER_NS_MAX: Final = Duration(500 * MILLISECOND)
"""A store that does not answer within this time counts as unavailable."""


@message
class NameEntry:
    incarnation: str
    expires: Instant
    """Expiry time on the store's clock."""


@message
class NameAnswer:
    """The store's answer to a claim."""

    held: str = ""
    """The other incarnation that has the name; empty if the name was granted."""
    left_ns: int = 0
    """Time until that entry expires; negative if the store has just set it to one lease."""


def claimed_name(
    entry: NameEntry | None, incarnation: str, lasts_ns: Duration, now: Instant
) -> tuple[NameEntry, NameAnswer]:
    """The store's entry after a claim at `now` on the store's clock, and its answer."""
    if entry is None or entry.incarnation == incarnation or entry.expires <= now:
        return NameEntry(incarnation, after(now, lasts_ns)), NameAnswer()
    if entry.expires > now + 2 * lasts_ns:
        # The store's clock was set back after the entry was written. A live process renews it within one lease.
        return NameEntry(entry.incarnation, after(now, lasts_ns)), NameAnswer(entry.incarnation, -1)
    return entry, NameAnswer(entry.incarnation, entry.expires - now)


class NameView:
    """State of one process's claim to its name."""

    __slots__ = ("_rival", "has", "taken")

    def __init__(self) -> None:
        self._rival: NameAnswer | None = None
        """Last seen entry of another incarnation."""
        self.has = False
        """Whether this process had the name at the last check."""
        self.taken = False
        """Whether another incarnation has renewed its entry."""

    def answered(self, answer: NameAnswer) -> bool:
        """Process the store's answer. Returns whether this process has the name."""
        before, self._rival = self._rival, answer if answer.held and answer.left_ns >= 0 else None
        self.has = not answer.held
        if before is not None and self._rival is not None:
            self.taken = before.held == answer.held and answer.left_ns > before.left_ns
        return self.has
