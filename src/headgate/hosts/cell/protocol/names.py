"""Decides which of several processes has a member name.

`claimed_name` is the store's part; the store runs it atomically. `NameView` is the process's part. A killed process no
longer renews its entry, so its successor gets the name within one lease. A renewed entry belongs to a live process, and
no other process gets the name.

An entry of another incarnation proves nothing by itself: after a failover the store may return the entry of a process
that is gone. An entry that was extended once proves nothing either: the last renewal of a killed process may arrive
after its death, and the store sets the entry to one lease after its clock was set back. A live process extends its
entry again and again; only an entry that was extended `RENEWALS_SEEN_MIN` times counts as renewed.
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
RENEWALS_SEEN_MIN: Final = 2
"""Number of times that a process sees another process's entry extended before it gives up the name."""


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

    __slots__ = ("_left_ns", "_renewals", "_rival", "has", "taken")

    def __init__(self) -> None:
        self._rival = ""
        """The other incarnation that had the name at the last check; empty if there was none."""
        self._left_ns: int | None = None
        """Time until its entry expired, at the last check; None if the store had just set it to one lease."""
        self._renewals = 0
        """Number of times that its entry was seen extended."""
        self.has = False
        """Whether this process had the name at the last check."""
        self.taken = False
        """Whether another incarnation renews its entry."""

    def answered(self, answer: NameAnswer) -> bool:
        """Process the store's answer. Returns whether this process has the name."""
        left_ns = answer.left_ns if answer.left_ns >= 0 else None
        if answer.held != self._rival:
            self._rival, self._renewals = answer.held, 0
        elif left_ns is not None and self._left_ns is not None and left_ns > self._left_ns:
            self._renewals += 1
        self._left_ns = left_ns
        self.has = not answer.held
        self.taken = self._renewals >= RENEWALS_SEEN_MIN
        return self.has
