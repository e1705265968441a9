"""Ownership of member names.

`claim_name` is the store's part and runs there atomically. `NameClaim` is the process's part. A killed process no
longer renews its entry, so its successor gets the name within one lease. A renewed entry belongs to a running process,
and no other process gets the name.

A single entry from another incarnation does not prove that its process is running. After a failover, the store may
return the entry of a process that has exited. Nor is one extension of the entry proof: a killed process's last renewal
may arrive after its death, and the store resets the entry to one lease if its clock was set back. A running process
extends its entry repeatedly, so an entry counts as renewed after `RENEWALS_SEEN_MIN` extensions.
"""

from typing import Final

from headgate.model.message import message
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, after

NAME_LEASE_NS: Final = Duration(2 * SECOND)
NAME_RENEW_NS: Final = Duration(500 * MILLISECOND)
NAME_POLL_NS: Final = Duration(100 * MILLISECOND)
"""Interval at which another process's entry is read."""
NAME_ANSWER_NS_MAX: Final = Duration(500 * MILLISECOND)
"""Time after which a store that does not respond counts as unavailable."""
RENEWALS_SEEN_MIN: Final = 2
"""Number of extensions of another process's entry after which a process gives up the name."""


@message
class NameEntry:
    incarnation: str
    expires: Instant
    """Expiry time by the store's clock."""


@message
class NameAnswer:
    """The store's response to a claim."""

    holder: str = ""
    """Incarnation of the other process that has the name. Empty if the name was granted."""
    expires_in_ns: int = 0
    """Time until that entry expires. Negative if the store has just set it to one lease."""


def claim_name(
    entry: NameEntry | None, incarnation: str, lasts_ns: Duration, now: Instant
) -> tuple[NameEntry, NameAnswer]:
    """Returns the store's entry and response after a claim at `now` by the store's clock."""
    if entry is None or entry.incarnation == incarnation or entry.expires <= now:
        return NameEntry(incarnation, after(now, lasts_ns)), NameAnswer()
    if entry.expires > now + 2 * lasts_ns:
        # The store's clock was set back after the entry was written. A running process renews it within one lease.
        return NameEntry(entry.incarnation, after(now, lasts_ns)), NameAnswer(entry.incarnation, -1)
    return entry, NameAnswer(entry.incarnation, entry.expires - now)


class NameClaim:
    """State of one process's claim to its name."""

    __slots__ = ("_left_ns", "_renewals", "_rival", "is_held", "is_taken")

    def __init__(self) -> None:
        self._rival = ""
        """Incarnation of the other process that had the name at the last check. Empty if there was none."""
        self._left_ns: int | None = None
        """Time until that entry expired, at the last check. None if the store had just set it to one lease."""
        self._renewals = 0
        """Number of observed extensions of that entry."""
        self.is_held = False
        """Whether this process had the name at the last check."""
        self.is_taken = False
        """Whether another running process has the name."""

    def apply_answer(self, answer: NameAnswer) -> bool:
        """Processes the store's response. Returns whether this process has the name."""
        left_ns = answer.expires_in_ns if answer.expires_in_ns >= 0 else None
        if answer.holder != self._rival:
            self._rival, self._renewals = answer.holder, 0
        elif left_ns is not None and self._left_ns is not None and left_ns > self._left_ns:
            self._renewals += 1
        self._left_ns = left_ns
        self.is_held = not answer.holder
        self.is_taken = self._renewals >= RENEWALS_SEEN_MIN
        return self.is_held
